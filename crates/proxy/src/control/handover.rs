//! What a sidecar, gateway or waypoint hands over to its successor: its pages, DNS and every listener.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::task::AbortHandle;
use voile_transport::handover::{Incumbent, Lent};

use super::admin;
use super::shutdown::Ending;
use super::state::Control;
use super::{Pages, dns};

/// The pages being served, and their sockets for a successor.
pub(super) struct Served {
    pub(super) tasks: Vec<AbortHandle>,
    pub(super) sockets: Pages,
}

/// What the old process needs to hand over.
pub(super) struct Holder {
    pub(super) control: Rc<RefCell<Control>>,
    pub(super) ending: Rc<Ending>,
    pub(super) served: RefCell<Served>,
}

impl Incumbent for Holder {
    fn who(&self) -> String {
        self.control.borrow().workload.clone()
    }

    fn sockets(&self) -> io::Result<Vec<Lent>> {
        let mut all = Vec::new();
        let served = self.served.borrow();
        for (role, socket) in served.sockets.each() {
            let address = socket.local_addr()?;
            all.push((role.to_owned(), address, socket.try_clone()?.into()));
        }
        for (role, address, socket) in served.sockets.dns.iter().flat_map(dns::Bound::each) {
            all.push((role.to_owned(), address?, socket?));
        }
        all.extend(self.control.borrow_mut().lend()?);
        Ok(all)
    }

    fn stop(&self) {
        self.control.borrow_mut().give_way();
        for task in self.served.borrow_mut().tasks.drain(..) {
            task.abort();
        }
        if let Some(dns) = &self.control.borrow().dns {
            dns.stop();
        }
    }

    fn resume(&self) {
        self.control.borrow_mut().accept_again();
        let again = self.served.borrow().sockets.try_clone();
        if let (Some(dns), Ok(Some(bound))) = (
            &self.control.borrow().dns,
            again.as_ref().map(|pages| pages.dns.as_ref()),
        ) && let Err(error) = bound.try_clone().and_then(|bound| dns.listen(bound))
        {
            tracing::error!(%error, "DNS stays closed");
        }
        let served = again.and_then(|pages| admin::serve(&self.control, &self.ending, pages));
        match served {
            Ok(tasks) => self.served.borrow_mut().tasks = tasks,
            Err(error) => tracing::error!(%error, "the pages stay closed"),
        }
    }

    fn succeeded(&self) {
        self.ending.hand_over();
    }
}
