//! Handover of a sidecar, gateway or waypoint to its successor: its pages, DNS and every listener.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::task::AbortHandle;
use voile_process::PageSockets;
use voile_transport::handover::{IncumbentProcess, Lent, until_it_opens};

use super::admin_pages::admin::ProxyPages;

/// The pages being served, and their sockets for a successor.
pub(super) struct PageListeners {
    pub(super) tasks: Vec<AbortHandle>,
    pub(super) pages: PageSockets,
}

/// Parts that the old process needs for the handover.
pub(super) struct HandoverState {
    pub(super) source: Rc<ProxyPages>,
    pub(super) served: Rc<RefCell<PageListeners>>,
}

impl IncumbentProcess for HandoverState {
    fn who(&self) -> String {
        self.source.control.borrow().workload.clone()
    }

    fn sockets(&self) -> io::Result<Vec<Lent>> {
        let served = self.served.borrow();
        let mut all = served.pages.lend(str::to_owned)?;
        let mut control = self.source.control.borrow_mut();
        if let Some(dns) = &control.dns {
            all.extend(dns.server.lend(str::to_owned)?);
        }
        all.extend(control.lend()?);
        Ok(all)
    }

    fn stop(&self) {
        self.source.control.borrow_mut().give_way();
        for task in self.served.borrow_mut().tasks.drain(..) {
            task.abort();
        }
        if let Some(dns) = &self.source.control.borrow().dns {
            dns.server.pause();
        }
    }

    fn resume(&self) {
        self.source.control.borrow_mut().accept_again();
        let (source, served) = (Rc::clone(&self.source), Rc::clone(&self.served));
        let reopening = tokio::task::spawn_local(async move {
            let dns = source.control.borrow().dns.clone();
            if let Some(dns) = dns {
                until_it_opens("DNS", || dns.server.open()).await;
            }
            let pages = || served.borrow().pages.serve(&source);
            let tasks = until_it_opens("the pages", pages).await;
            served.borrow_mut().tasks = tasks;
        });
        self.served.borrow_mut().tasks = vec![reopening.abort_handle()];
    }

    fn succeeded(&self) {
        self.source.ending.hand_over();
    }
}
