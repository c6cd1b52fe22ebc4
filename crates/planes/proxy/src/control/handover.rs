//! Handover of a sidecar, gateway or waypoint to its successor: its pages, DNS and every listener.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::task::AbortHandle;
use voile_transport::handover::{IncumbentProcess, Lent, until_it_opens};

use super::admin_pages::admin;
use super::discovery::state::Control;
use super::network::dns;
use super::shutdown::ShutdownRequest;
use crate::control::own_sockets::Pages;

/// The pages being served, and their sockets for a successor.
pub(super) struct PageListeners {
    pub(super) tasks: Vec<AbortHandle>,
    pub(super) sockets: Pages,
}

/// Parts that the old process needs for the handover.
pub(super) struct HandoverState {
    pub(super) control: Rc<RefCell<Control>>,
    pub(super) ending: Rc<ShutdownRequest>,
    pub(super) served: Rc<RefCell<PageListeners>>,
}

impl IncumbentProcess for HandoverState {
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
        for (role, address, socket) in served
            .sockets
            .dns
            .iter()
            .flat_map(dns::BoundDnsSockets::each)
        {
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
        let served = Rc::clone(&self.served);
        let (control, ending) = (Rc::clone(&self.control), Rc::clone(&self.ending));
        let reopening = tokio::task::spawn_local(async move {
            let dns = || match (&control.borrow().dns, &served.borrow().sockets.dns) {
                (Some(dns), Some(bound)) => bound.try_clone().and_then(|bound| dns.listen(bound)),
                _ => Ok(()),
            };
            until_it_opens("DNS", dns).await;
            let pages = || {
                let pages = served.borrow().sockets.try_clone()?;
                admin::serve(&control, &ending, pages)
            };
            let tasks = until_it_opens("the pages", pages).await;
            served.borrow_mut().tasks = tasks;
        });
        self.served.borrow_mut().tasks = vec![reopening.abort_handle()];
    }

    fn succeeded(&self) {
        self.ending.hand_over();
    }
}
