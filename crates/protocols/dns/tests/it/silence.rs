//! A resolver that says nothing: clients hear of it from us before they give up by themselves, and soon at once.

use std::net::UdpSocket;

use voile_dns::{DnsTransport, ForwardError, Resolver, Upstreams};

/// `web` A IN.
const QUESTION: &[u8] =
    b"\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web\x00\x00\x01\x00\x01";

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn questions_after_the_first_unanswered_ones_are_not_kept_waiting() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let upstreams = Upstreams::fixed(silent.local_addr().expect("an address"));
    let both = (
        upstreams.forward(QUESTION, DnsTransport::Udp),
        upstreams.forward(QUESTION, DnsTransport::Udp),
    );
    let (first, second) = tokio::join!(both.0, both.1);
    assert!(matches!(first, Err(ForwardError::All(_))), "{first:?}");
    assert!(matches!(second, Err(ForwardError::All(_))), "{second:?}");
    let third = upstreams.forward(QUESTION, DnsTransport::Udp).await;
    assert!(matches!(third, Err(ForwardError::Silent)), "{third:?}");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_resolver_that_answers_others_is_not_taken_for_silent() {
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
    let server = server.expect("a socket");
    let upstreams = Upstreams::fixed(server.local_addr().expect("an address"));
    // It never answers questions for `dead`, such as names whose own servers are gone.
    let dead = QUESTION.to_vec();
    let mut good = QUESTION.to_vec();
    good[14] = b'w';
    let mut dead_name = dead.clone();
    dead_name[14] = b'd';
    let serve = async {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = server.recv_from(&mut buffer).await.expect("a question");
            if buffer[14] != b'd' {
                buffer[2] |= 0x80;
                server.send_to(&buffer[..length], peer).await.expect("sent");
            }
        }
    };
    let ask = async {
        let (first, second, between) = tokio::join!(
            upstreams.forward(&dead_name, DnsTransport::Udp),
            upstreams.forward(&dead_name, DnsTransport::Udp),
            upstreams.forward(&good, DnsTransport::Udp),
        );
        assert!(first.is_err() && second.is_err() && between.is_ok());
        let next = upstreams.forward(&good, DnsTransport::Udp).await;
        assert!(next.is_ok(), "{next:?}");
    };
    tokio::select! {
        () = ask => {}
        () = serve => {}
    }
}

/// A port for both kinds of transport: one that is free for TCP may be in use for datagrams.
async fn both() -> (
    tokio::net::TcpListener,
    tokio::net::UdpSocket,
    std::net::SocketAddr,
) {
    for _ in 0..100 {
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let tcp = tcp.expect("a socket");
        let address = tcp.local_addr().expect("bound");
        if let Ok(udp) = tokio::net::UdpSocket::bind(address).await {
            return (tcp, udp, address);
        }
    }
    panic!("no port is free for both");
}

#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_did_not_fit_is_asked_for_again_by_tcp() {
    use std::net::IpAddr;
    use std::path::Path;
    use std::rc::Rc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (tcp, udp, address) = both().await;
    let by_udp = async {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = udp.recv_from(&mut buffer).await.expect("a question");
            buffer[2] |= 0x82; // an answer, cut short
            udp.send_to(&buffer[..length], peer).await.expect("sent");
        }
    };
    let by_tcp = async {
        loop {
            let (mut stream, _) = tcp.accept().await.expect("a connection");
            let length = stream.read_u16().await.expect("a length");
            let mut packet = vec![0; length.into()];
            stream.read_exact(&mut packet).await.expect("a question");
            packet.truncate(12 + 5 + 4);
            let is_a = packet[18] == 1;
            packet[2] |= 0x80;
            packet[11] = 0;
            if is_a {
                packet[7] = 1;
                packet.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x09");
            }
            let length = u16::try_from(packet.len()).expect("short");
            stream.write_u16(length).await.expect("sent");
            stream.write_all(&packet).await.expect("sent");
        }
    };
    let resolver = Resolver::new(Path::new("/nowhere"), Rc::new(Upstreams::fixed(address)));
    let found = tokio::select! {
        found = resolver.lookup("web") => found.expect("found"),
        () = by_udp => unreachable!("it goes on"),
        () = by_tcp => unreachable!("it goes on"),
    };
    assert_eq!(found.addresses, [IpAddr::from([192, 0, 2, 9])]);
}

#[tokio::test(flavor = "current_thread")]
async fn where_somebody_else_speaks_tcp_a_datagram_is_asked() {
    let (tcp, udp, address) = both().await;
    let by_udp = async {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = udp.recv_from(&mut buffer).await.expect("a question");
            buffer[2] |= 0x80;
            udp.send_to(&buffer[..length], peer).await.expect("sent");
        }
    };
    // An echo: the same data as on a connection to itself.
    let by_tcp = async {
        loop {
            let (mut stream, _) = tcp.accept().await.expect("a connection");
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    };
    let upstreams = Upstreams::fixed(address);
    let answer = tokio::select! {
        answer = upstreams.forward(QUESTION, DnsTransport::Tcp) => answer,
        () = by_udp => unreachable!("it goes on"),
        () = by_tcp => unreachable!("it goes on"),
    };
    assert!(answer.is_ok(), "{answer:?}");
}
