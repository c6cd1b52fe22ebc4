//! Runs probes on a thread that takes questions and gives answers. A probe goes over the network past the pod's
//! sidecar, which would demand mutual TLS; or it is a program beside the application.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::netns::rules::MARK_INWARD;
use voile_model::Port;
use voile_model::mesh::Probe;
use voile_probe::{ProbeOrigin, ProbeRequest, ask};

use crate::expand::PodPlan;
use crate::process::Recipe;
use crate::variables::expand;

/// One question, ready to be asked again and again.
#[derive(Debug, Clone)]
pub(super) struct ProbeCall {
    what: ProbeTarget,
    timeout: Duration,
}

#[derive(Debug, Clone)]
enum ProbeTarget {
    Network {
        port: Port,
        address: SocketAddr,
        /// Past the sidecar, from within.
        namespace: Option<Namespace>,
        question: ProbeRequest,
    },
    Program(Box<Recipe>),
}

impl ProbeCall {
    pub(super) fn new(
        plan: &PodPlan,
        namespace: Option<&Namespace>,
        probe: &Probe,
        recipe: &Recipe,
    ) -> Self {
        let what = match ProbeRequest::from_action(&probe.question) {
            Ok((port, question)) => ProbeTarget::Network {
                port,
                address: plan.probed(port.get()).into(),
                namespace: namespace.cloned(),
                question,
            },
            Err(command) => {
                let variables: BTreeMap<_, _> = recipe.env.iter().cloned().collect();
                let words = command.iter().map(|word| expand(word, &variables));
                ProbeTarget::Program(Box::new(recipe.beside(words)))
            }
        };
        Self {
            what,
            timeout: probe.timeout,
        }
    }

    /// Updates the application's address.
    pub(super) fn follow(&mut self, plan: &PodPlan) {
        if let ProbeTarget::Network { port, address, .. } = &mut self.what {
            *address = plan.probed(port.get()).into();
        }
    }

    fn run(&self) -> Heard {
        match &self.what {
            ProbeTarget::Network {
                address,
                namespace,
                question,
                ..
            } => {
                let marked = ProbeOrigin {
                    mark: Some(MARK_INWARD),
                    source: None,
                };
                let asked = match namespace {
                    None => ask(*address, ProbeOrigin::default(), question, self.timeout),
                    Some(namespace) => namespace
                        .run(|| ask(*address, marked, question, self.timeout))
                        .map_err(|error| error.to_string())?,
                };
                let elsewhere = |status: u16| {
                    let warning = format!(
                        "is redirected to another host ({status}), which counts as success"
                    );
                    (300..400).contains(&status).then_some(warning)
                };
                asked.map(elsewhere).map_err(|failure| failure.why)
            }
            ProbeTarget::Program(recipe) => {
                let program = recipe.program.display();
                let mut child = recipe.spec().start().map_err(|error| error.to_string())?;
                match child.wait(self.timeout) {
                    Some(exit) if exit.is_success() => Ok(None),
                    Some(exit) => Err(format!("`{program}` {exit}")),
                    None => {
                        child.stop(Duration::ZERO);
                        Err(format!("`{program}` takes longer than {:?}", self.timeout))
                    }
                }
            }
        }
    }
}

/// Answered well, perhaps with something that people should know; or why not.
pub(super) type Heard = Result<Option<String>, String>;

/// To the thread and back.
type Channels = (Sender<ProbeCall>, Receiver<Heard>);

/// The thread, started by the first question; it ends when this is dropped, after the question it is asking.
#[derive(Debug, Default)]
pub(super) struct ProbeThread {
    thread: Option<Channels>,
    /// Why it could not be asked.
    failed: Option<String>,
}

impl ProbeThread {
    /// Asks; the answer comes by [`Self::answer`].
    pub(super) fn ask(&mut self, question: ProbeCall) {
        if self.thread.is_none() {
            match start() {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => self.failed = Some(format!("cannot ask: {error}")),
            }
        }
        if let Some((questions, _)) = &self.thread
            && questions.send(question).is_err()
        {
            self.thread = None;
            self.failed = Some("cannot ask: the thread has ended".to_owned());
        }
    }

    /// The answer, if it has come.
    pub(super) fn answer(&mut self) -> Option<Heard> {
        if let Some(failed) = self.failed.take() {
            return Some(Err(failed));
        }
        let (_, answers) = self.thread.as_ref()?;
        match answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.thread = None;
                Some(Err("cannot ask: the thread has ended".to_owned()))
            }
        }
    }
}

fn start() -> std::io::Result<Channels> {
    let (questions, asked) = mpsc::channel::<ProbeCall>();
    let (answered, answers) = mpsc::channel();
    thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || {
            for question in asked {
                if answered.send(question.run()).is_err() {
                    return;
                }
            }
        })?;
    Ok((questions, answers))
}
