//! Route decision for a request without a running proxy, used to compare our routes with those of other proxies. It uses the
//! proxy's own code, from the bytes of a request's head to the route table.

use std::sync::Arc;

use voile_http1::{Progress, RequestIndex};
use voile_model::{Labels, Port};

use crate::http::HttpHead;
use crate::registry::routes::{CompiledRoutes, HeldRoutes};
use crate::worker::RequestAttributes;

/// The routes of a service's port, as a proxy of a workload with these labels obeys them.
#[derive(Debug)]
pub struct PredictedRoutes {
    routes: Arc<CompiledRoutes>,
    port: Port,
}

/// Route of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictedRoute<'a> {
    /// The name of the route that it takes.
    pub route: &'a str,
    /// Possible destinations: clusters by Istio's names, or the missing destination.
    pub to: Vec<Result<String, &'a str>>,
}

impl PredictedRoutes {
    /// Reads routes as the control plane tells them.
    ///
    /// # Errors
    /// A proxy would refuse them.
    pub fn read(body: &[u8], port: Port, own: &Labels) -> Result<Self, String> {
        let held = HeldRoutes::decode("".into(), body)?;
        let routes = held.compiled(port, own);
        Ok(Self { routes, port })
    }

    /// Route of a request with this HTTP/1.1 head; `None` if no route takes it.
    ///
    /// # Errors The head is no request.
    pub fn of(&self, head: &[u8]) -> Result<Option<PredictedRoute<'_>>, String> {
        let mut index = RequestIndex::default();
        match index.parse(head) {
            Ok(Progress::Complete) => {}
            Ok(Progress::Partial) => return Err("the head is incomplete".to_owned()),
            Err(reject) => return Err(format!("{reject:?}")),
        }
        let head = HttpHead::Http1(index.head(head));
        let table = self.routes.table.as_ref();
        let chosen = table.and_then(|table| table.choose(&RequestAttributes::new(&head, None)));
        Ok(chosen.map(|number| self.lot(number)))
    }

    fn lot(&self, number: usize) -> PredictedRoute<'_> {
        let rule = &self.routes.rules[number];
        let to = rule
            .targets()
            .map(|target| match &self.routes.targets[target] {
                Ok(to) => {
                    let port = to.port.unwrap_or(self.port);
                    let subset = to.subset.as_deref().unwrap_or_default();
                    Ok(format!("outbound|{port}|{subset}|{}", to.service.hostname))
                }
                Err(missing) => Err(&**missing),
            });
        PredictedRoute {
            route: &rule.name,
            to: to.collect(),
        }
    }
}
