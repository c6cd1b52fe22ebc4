//! Opening of the pages, and offer of the sockets to a successor. A first process does both at once; a successor after
//! its predecessor has stopped.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use tokio::task::AbortHandle;
use voile_process::RunError;
use voile_transport::PacketListener;
use voile_transport::handover::{Predecessor, READY_LIMIT, offer};

use crate::control::admin_pages::admin::ProxyPages;
use crate::control::discovery::state::Control;
use crate::control::handover::{HandoverState, PageListeners};
use crate::control::network::dns;
use crate::control::own_sockets::OwnSockets;
use crate::control::shutdown::ShutdownRequest;

/// Starts the DNS proxy.
pub(in crate::control) type StartDns = Box<dyn FnOnce() -> io::Result<Rc<dns::Dns>>>;

/// See the module.
pub(in crate::control) struct PageOpening {
    source: Rc<ProxyPages>,
    /// Path of the socket for a successor.
    path: Option<PathBuf>,
    sockets: Option<OwnSockets>,
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
        mut sockets: OwnSockets,
        dns: Option<StartDns>,
    ) -> Result<Self, RunError> {
        let predecessor = sockets.predecessor.take();
        let mut doors = Self {
            source: Rc::new(ProxyPages {
                control: Rc::clone(control),
                ending: Rc::clone(ending),
            }),
            path,
            sockets: Some(sockets),
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
        let Some(sockets) = self.sockets.take() else {
            return Ok(());
        };
        if let Some(start) = self.dns.take() {
            self.source.control.borrow_mut().dns = Some(start()?);
        }
        let tasks = sockets.pages.serve(&self.source)?;
        let Some(path) = &self.path else {
            return Ok(());
        };
        let listener = PacketListener::bind(path).map_err(|error| {
            RunError::Handover(format!("cannot listen at {}: {error}", path.display()))
        })?;
        let pages = sockets.pages;
        let holder = Rc::new(HandoverState {
            source: Rc::clone(&self.source),
            served: Rc::new(RefCell::new(PageListeners { tasks, pages })),
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
        self.source.control.borrow_mut().relieved();
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
        let reasons = self.source.control.borrow().unready().join("; ");
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
