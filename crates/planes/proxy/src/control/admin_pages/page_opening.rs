//! Opening of the pages, and offer of the sockets to a successor. A first process does both at once; a successor after
//! its predecessor has stopped.

use std::cell::RefCell;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use tokio::task::AbortHandle;
use voile_transport::PacketListener;
use voile_transport::handover::{InheritedSockets, Predecessor, READY_LIMIT, offer};

use crate::control::admin_pages::admin;
use crate::control::discovery::state::Control;
use crate::control::handover::{HandoverState, PageListeners};
use crate::control::network::dns;
use crate::control::options::RunError;
use crate::control::own_sockets::Pages;
use crate::control::shutdown::ShutdownRequest;

impl Pages {
    /// Each socket with its role in a handover.
    pub(in crate::control) fn each(&self) -> [(&'static str, &TcpListener); 3] {
        [
            ("admin", &self.admin),
            ("metrics", &self.metrics),
            ("readiness", &self.readiness),
        ]
    }

    pub(in crate::control) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            admin: self.admin.try_clone()?,
            metrics: self.metrics.try_clone()?,
            readiness: self.readiness.try_clone()?,
            captured: Vec::new(),
            dns: self
                .dns
                .as_ref()
                .map(dns::BoundDnsSockets::try_clone)
                .transpose()?,
            inherited: InheritedSockets::default(),
            predecessor: None,
        })
    }
}

/// Starts the DNS proxy.
pub(in crate::control) type StartDns = Box<dyn FnOnce() -> io::Result<Rc<dns::Dns>>>;

/// See the module.
pub(in crate::control) struct PageOpening {
    control: Rc<RefCell<Control>>,
    ending: Rc<ShutdownRequest>,
    /// Path of the socket for a successor.
    path: Option<PathBuf>,
    pages: Option<Pages>,
    predecessor: Option<Predecessor>,
    dns: Option<StartDns>,
    /// When a successor that is not ready gives up.
    pub(in crate::control) deadline: Option<Instant>,
    offering: Option<AbortHandle>,
}

impl PageOpening {
    pub(in crate::control) fn new(
        control: &Rc<RefCell<Control>>,
        ending: &Rc<ShutdownRequest>,
        path: Option<PathBuf>,
        mut pages: Pages,
        dns: Option<StartDns>,
    ) -> Result<Self, RunError> {
        let predecessor = pages.predecessor.take();
        let mut doors = Self {
            control: Rc::clone(control),
            ending: Rc::clone(ending),
            path,
            pages: Some(pages),
            deadline: predecessor.is_some().then(|| Instant::now() + READY_LIMIT),
            predecessor,
            dns,
            offering: None,
        };
        if doors.predecessor.is_none() {
            doors.open()?;
        }
        Ok(doors)
    }

    fn open(&mut self) -> Result<(), RunError> {
        let Some(pages) = self.pages.take() else {
            return Ok(());
        };
        if let Some(start) = self.dns.take() {
            self.control.borrow_mut().dns = Some(start()?);
        }
        let Some(path) = &self.path else {
            admin::serve(&self.control, &self.ending, pages)?;
            return Ok(());
        };
        let sockets = pages.try_clone()?;
        let tasks = admin::serve(&self.control, &self.ending, pages)?;
        let listener = PacketListener::bind(path).map_err(|error| {
            RunError::Handover(format!("cannot listen at {}: {error}", path.display()))
        })?;
        let holder = Rc::new(HandoverState {
            control: Rc::clone(&self.control),
            ending: Rc::clone(&self.ending),
            served: Rc::new(RefCell::new(PageListeners { tasks, sockets })),
        });
        let offering = tokio::task::spawn_local(offer(listener, holder));
        self.offering = Some(offering.abort_handle());
        Ok(())
    }

    /// This process is ready: one that takes over takes over, unless its predecessor gave way to another meanwhile.
    pub(in crate::control) async fn ready(&mut self) -> Result<(), RunError> {
        let Some(predecessor) = self.predecessor.take() else {
            return Ok(());
        };
        self.deadline = None;
        let relieved = predecessor.relieve().await?;
        self.control.borrow_mut().relieved();
        if let Err(error) = self.open() {
            tracing::error!(%error, "cannot open the handover socket; serving without handover");
        }
        if let Some(relieved) = relieved {
            relieved.dismiss().await;
        }
        Ok(())
    }

    /// Why a successor gives up.
    pub(in crate::control) fn late(&self) -> RunError {
        let reasons = self.control.borrow().unready().join("; ");
        RunError::Handover(format!(
            "not ready within {READY_LIMIT:?} ({reasons}); the running proxy goes on serving"
        ))
    }

    /// Stops offering the sockets.
    pub(in crate::control) fn close(&self) {
        if let Some(offering) = &self.offering {
            offering.abort();
        }
    }
}
