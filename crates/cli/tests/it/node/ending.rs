//! The end of a node proxy that has no successor: it answers what was asked before.

use std::collections::BTreeMap;
use std::net::UdpSocket;

use super::names::{NAME_SERVER, OUTSIDE, start, town};
use super::*;
use crate::mesh::resolver::{Resolver, question, read};

#[test]
fn a_question_that_came_before_the_end_is_answered() {
    let Some((mut mesh, pods, _resolver)) = town() else {
        return;
    };
    let late = mesh.world.run(|| UdpSocket::bind((WORLD, 5353)));
    let late = late.expect("entered").expect("a socket");
    let node = start(&mut mesh, &pods, &["--resolver", "10.244.0.1:5353"]);
    let asking = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let asking = pods[0].inside.run(asking).expect("entered");
    let asking = asking.expect("a socket");
    let patience = Some(Duration::from_secs(20));
    asking.set_read_timeout(patience).expect("a timeout");
    let name = "www.elsewhere.test";
    let sent = asking.send_to(&question(name, "A"), (NAME_SERVER, 53));
    sent.expect("sent");
    let mut packet = [0; 1500];
    late.peek(&mut packet).expect("the question is passed on");
    node.running(&mesh).terminate();
    wait_until("it drains", || node.log(&mesh).contains("draining"));
    Resolver::start_on(late, BTreeMap::from([(name, vec![OUTSIDE])]));
    let length = asking.recv(&mut packet).expect("an answer");
    assert_eq!(read(&packet[..length]), format!("NOERROR {OUTSIDE}"));
    node.ends_well(&mut mesh);
}

impl Node {
    /// Waits for the end of its process.
    fn ends_well(&self, mesh: &mut Mesh) {
        let mut all = mesh.processes.iter_mut();
        let process = all.find(|process| process.name() == self.process);
        let process = process.expect("it was started");
        assert!(process.wait().success(), "{}", process.log());
    }
}
