//! The DNS server of a proxy: its sockets, which a successor takes over, and the answers at them. A data plane says what the
//! names mean.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;

use voile_dns::{DnsCounters, Names, QueryLimits, Responder, SocketPair};
use voile_transport::handover::{InheritedSockets, Lent};

/// Roles of an address's two sockets in a handover.
const ROLES: [&str; 2] = ["dns-udp", "dns-tcp"];

/// UDP and TCP at each address.
#[derive(Debug, Default)]
pub struct DnsSockets(Vec<(UdpSocket, TcpListener)>);

impl DnsSockets {
    /// Binds both at one more address, or takes those of the process before. `role` names each in a handover.
    ///
    /// # Errors
    /// The address is taken, not ours, or not permitted.
    pub fn bind(
        &mut self,
        address: SocketAddr,
        inherited: &mut InheritedSockets,
        role: impl Fn(&str) -> String,
    ) -> io::Result<()> {
        let udp = inherited.bind_udp(&role(ROLES[0]), address)?;
        let tcp = inherited.bind(&role(ROLES[1]), udp.local_addr()?)?;
        self.0.push((udp, tcp));
        Ok(())
    }

    /// The addresses.
    ///
    /// # Errors
    /// The kernel does not know one.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.0.iter().map(|(udp, _)| udp.local_addr()).collect()
    }
}

/// See the module.
#[derive(Debug)]
pub struct DnsServer<N> {
    sockets: RefCell<DnsSockets>,
    responder: Rc<Responder<N>>,
    limits: QueryLimits,
    serving: RefCell<Vec<SocketPair>>,
}

impl<N: Names> DnsServer<N> {
    /// A server that does not answer yet.
    #[must_use]
    pub fn new(sockets: DnsSockets, responder: Responder<N>, limits: QueryLimits) -> Self {
        Self {
            sockets: RefCell::new(sockets),
            responder: Rc::new(responder),
            limits,
            serving: RefCell::default(),
        }
    }

    /// Takes questions from now on, in a `LocalSet`. The sockets stay, for a successor.
    ///
    /// # Errors
    /// Descriptors run out.
    pub fn open(&self) -> io::Result<()> {
        // What an earlier attempt opened.
        self.pause();
        let mut serving = self.serving.borrow_mut();
        serving.retain(|pair| !pair.is_idle());
        for (udp, tcp) in &self.sockets.borrow().0 {
            let (udp, tcp) = (udp.try_clone()?, tcp.try_clone()?);
            let responder = Rc::clone(&self.responder);
            serving.push(voile_dns::serve(udp, tcp, responder, &self.limits)?);
        }
        Ok(())
    }

    /// Takes no more questions. Earlier ones are still answered; later ones wait in the kernel, for us or a successor.
    pub fn pause(&self) {
        self.serving.borrow().iter().for_each(SocketPair::stop);
    }

    /// Returns true if every question that was taken is answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.serving.borrow().iter().all(SocketPair::is_idle)
    }

    /// Closes the sockets in this moment.
    pub fn close(&self) {
        self.serving.take().iter().for_each(SocketPair::close);
        self.sockets.take();
    }

    /// The sockets for a successor, each by its role.
    ///
    /// # Errors
    /// Descriptors run out.
    pub fn lend(&self, role: impl Fn(&str) -> String) -> io::Result<Vec<Lent>> {
        let mut all = Vec::new();
        for (udp, tcp) in &self.sockets.borrow().0 {
            let address = udp.local_addr()?;
            all.push((role(ROLES[0]), address, udp.try_clone()?.into()));
            all.push((role(ROLES[1]), address, tcp.try_clone()?.into()));
        }
        Ok(all)
    }

    /// Counters of the questions.
    #[must_use]
    pub fn figures(&self) -> DnsCounters {
        self.responder.figures()
    }
}
