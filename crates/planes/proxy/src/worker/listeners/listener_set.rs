//! A worker's listeners: their present configuration, and plan changes that leave the others alone. A connection holds its slot:
//! a change reaches it at its next request, and a removed listener lets its connections finish.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use quinn::Incoming;
use tokio::net::TcpStream;
use voile_identity::Revocations;
use voile_policy::Trust;

use crate::http::HttpRole;
use crate::plan::{CapturedDestination, ListenerId, OutboundPlan, ProxyPlan, Settings, SharedPart};
use crate::worker::handlers::{captured, gateway, gateway_http3, inbound, outbound, tunnel_server};
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::listeners::engine::ListenerEngine;
use crate::worker::listeners::gateway_slot::GatewaySlot;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::policy::admission::TrustState;
use crate::worker::{ConnectionPermit, HandshakePermit, Worker};

/// See the module.
#[derive(Default)]
pub(crate) struct WorkerListeners {
    inbound: HashMap<ListenerId, Rc<InboundSlot>>,
    outbound: HashMap<ListenerId, Rc<OutboundSlot>>,
    gateway: HashMap<ListenerId, Rc<GatewaySlot>>,
    pub(crate) captured: Rc<CapturedListeners>,
}

impl WorkerListeners {
    /// Obeys a plan; its listeners are named in its order.
    pub(crate) fn apply(
        &mut self,
        worker: &Worker,
        plan: &ProxyPlan,
        [inbound, outbound, gateway]: [&[ListenerId]; 3],
    ) {
        let renewed = **worker.settings.borrow() != plan.settings;
        // Certificate facts are noted at the connect: a client without them connects again.
        let forwards = {
            let before = worker.settings.borrow();
            let told = |settings: &Settings| (settings.forwards, settings.details);
            told(&before) != told(&plan.settings)
        };
        if renewed {
            *worker.settings.borrow_mut() = Rc::new(plan.settings.clone());
        }
        worker.become_workload(&plan.own);
        let aliases = plan.trust_domain_aliases.clone();
        let mut judge = worker.believe(TrustState {
            trust: Trust::new(plan.trust_domain.clone(), aliases),
            revocations: plan.revocations.clone(),
        });
        if judge {
            self.doubt_servers(worker, plan.revocations.as_deref());
        }
        let limits = plan.rate_limits.as_ref().map(|SharedPart(limits)| limits);
        judge |= worker.limit(limits, &plan.limiters);
        judge |= worker.obey_policies(plan.authorization.as_ref());
        judge |= worker.ask_of(plan.authorizer.as_ref());
        judge |= worker.tokens.obey(plan.tokens.as_ref());
        self.inbound
            .retain(|id, slot| inbound.contains(id) || leave(&slot.http));
        self.outbound
            .retain(|id, slot| outbound.contains(id) || leave(&slot.http));
        self.gateway.retain(|id, slot| {
            let stays = gateway.contains(id);
            if !stays {
                slot.each_http(ListenerEngine::leave);
            }
            stays
        });
        judge |= self.captured.apply(worker, plan.capture.as_ref(), renewed);
        for (id, listener) in inbound.iter().zip(&plan.inbound) {
            match self.inbound.get(id) {
                Some(slot) => judge |= slot.follow(worker, listener, renewed),
                None => {
                    self.inbound
                        .insert(*id, Rc::new(InboundSlot::new(worker, listener)));
                }
            }
        }
        for (id, listener) in outbound.iter().zip(&plan.outbound) {
            match self.outbound.get(id) {
                Some(slot) => slot.follow(worker, listener, renewed),
                None => {
                    self.outbound
                        .insert(*id, Rc::new(OutboundSlot::new(worker, listener)));
                }
            }
        }
        for (id, listener) in gateway.iter().zip(&plan.gateway) {
            match self.gateway.get(id) {
                Some(slot) => judge |= slot.follow(worker, listener, renewed),
                None => {
                    let slot = Rc::new(GatewaySlot::new(worker, listener));
                    self.gateway.insert(*id, slot);
                }
            }
        }
        if judge || forwards {
            self.judge_again(worker);
        }
    }

    /// Ends what goes to servers whose certificates were taken back, and has those that are called next shake hands anew.
    fn doubt_servers(&self, worker: &Worker, lists: Option<&Revocations>) {
        if let Some(lists) = lists {
            worker.shown.revoke(lists);
        }
        self.outbound.values().for_each(|slot| slot.http.doubt());
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(ListenerEngine::doubt));
        self.captured.doubt_servers();
    }

    /// Has everything admitted judged again.
    fn judge_again(&self, worker: &Worker) {
        worker.judge_again();
        self.inbound
            .values()
            .for_each(|slot| slot.http.judge_again());
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(ListenerEngine::judge_again));
        self.captured.judge_again();
    }

    /// Applies the answer about a captured destination.
    pub(crate) fn learn(
        &self,
        worker: &Worker,
        to: CapturedDestination,
        plan: Option<Arc<OutboundPlan>>,
    ) {
        self.captured.learn(worker, to, plan.as_deref());
        worker.tell_of_checks(plan);
    }

    /// Serves a redirected connection in a task of its own.
    pub(crate) fn serve_captured(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        to: Option<SocketAddr>,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionPermit,
    ) {
        let (worker, captured) = (Rc::clone(worker), Rc::clone(&self.captured));
        let keeper = place.keeper();
        if id == ListenerId::CAPTURED_INBOUND {
            keeper.spawn(async move {
                captured::serve_inbound(worker, captured, to, stream, peer).await;
                drop(place);
            });
        } else if id == ListenerId::TUNNELS {
            keeper.spawn(async move {
                tunnel_server::serve(worker, captured, stream, peer).await;
                drop(place);
            });
        } else {
            keeper.spawn(async move {
                captured::serve_outbound(worker, captured, to, stream, peer).await;
                drop(place);
            });
        }
    }

    /// Serves a connection in a task of its own.
    pub(crate) fn serve(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionPermit,
    ) {
        let (worker, keeper) = (Rc::clone(worker), place.keeper());
        if let Some(slot) = self.inbound.get(&id).cloned() {
            keeper.spawn(async move {
                inbound::serve(worker, slot, stream, peer).await;
                drop(place);
            });
        } else if let Some(slot) = self.outbound.get(&id).cloned() {
            keeper.spawn(async move {
                outbound::serve(worker, slot, None, stream, peer).await;
                drop(place);
            });
        } else if let Some(slot) = self.gateway.get(&id).cloned() {
            keeper.spawn(async move {
                gateway::serve(worker, slot, stream, peer).await;
                drop(place);
            });
        }
        // Otherwise the listener was removed while the connection was handed over; it closes.
    }

    /// The same for an HTTP/3 connection, which only gateways have.
    pub(crate) fn serve_http3(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        incoming: Box<(Incoming, HandshakePermit)>,
        place: ConnectionPermit,
    ) {
        if let Some(slot) = self.gateway.get(&id).cloned() {
            let (worker, keeper) = (Rc::clone(worker), place.keeper());
            keeper.spawn(async move {
                gateway_http3::serve(worker, slot, incoming).await;
                drop(place);
            });
        }
    }

    /// Closes what is idle, on both sides.
    pub(crate) fn relieve(&self) {
        self.inbound.values().for_each(|slot| slot.http.relieve());
        self.outbound.values().for_each(|slot| slot.http.relieve());
        self.gateway.values().for_each(|slot| slot.relieve());
        self.captured.relieve();
    }

    pub(crate) fn drain(&self, gently: bool) {
        self.inbound
            .values()
            .for_each(|slot| slot.http.drain(gently));
        self.outbound
            .values()
            .for_each(|slot| slot.http.drain(gently));
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(|http| http.drain(gently)));
        self.captured.drain(gently);
    }

    pub(crate) fn idle_upstreams(&self) -> u64 {
        let inbound = self.inbound.values().map(|slot| slot.http.idle_upstreams());
        let outbound = self
            .outbound
            .values()
            .map(|slot| slot.http.idle_upstreams());
        let gateway = self.gateway.values();
        let gateway = gateway.map(|slot| {
            let mut idle = 0;
            slot.each_http(|http| idle += http.idle_upstreams());
            idle
        });
        (inbound.chain(outbound).chain(gateway).sum::<usize>() + self.captured.idle_upstreams())
            as u64
    }
}

/// Lets the connections of a removed listener finish; says `false` for `retain`.
fn leave<R: HttpRole + 'static>(http: &ListenerEngine<R>) -> bool {
    http.leave();
    false
}
