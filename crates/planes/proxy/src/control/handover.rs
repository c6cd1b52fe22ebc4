//! Handover of a sidecar, gateway or waypoint to its successor: its pages, DNS and every listener.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::task::AbortHandle;
use voile_process::PageSockets;
use voile_transport::handover::{IncumbentProcess, Lent, until_it_opens};

use super::admin_pages::admin::ProxyPages;
use super::network::dns;

/// The pages being served, and their sockets for a successor.
pub(super) struct PageListeners {
    pub(super) tasks: Vec<AbortHandle>,
    pub(super) pages: PageSockets,
    pub(super) dns: Option<dns::BoundDnsSockets>,
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
        for (role, address, socket) in served.dns.iter().flat_map(dns::BoundDnsSockets::each) {
            all.push((role.to_owned(), address?, socket?));
        }
        all.extend(self.source.control.borrow_mut().lend()?);
        Ok(all)
    }

    fn stop(&self) {
        self.source.control.borrow_mut().give_way();
        for task in self.served.borrow_mut().tasks.drain(..) {
            task.abort();
        }
        if let Some(dns) = &self.source.control.borrow().dns {
            dns.stop();
        }
    }

    fn resume(&self) {
        self.source.control.borrow_mut().accept_again();
        let (source, served) = (Rc::clone(&self.source), Rc::clone(&self.served));
        let reopening = tokio::task::spawn_local(async move {
            let dns = || match (&source.control.borrow().dns, &served.borrow().dns) {
                (Some(dns), Some(bound)) => bound.try_clone().and_then(|bound| dns.listen(bound)),
                _ => Ok(()),
            };
            until_it_opens("DNS", dns).await;
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
