//! A connection and its calls, and a caller that sees each frame.

use std::task::Waker;

use http::Request;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::LocalSet;
use tonic::Status;
use tonic::body::Body;
use voile_http2::{Config, Fields, RecvStream, ResponseFuture, SendStream};
use voile_xds::server::ServedStream;

use super::*;
use crate::server::budget::{
    MAX_NEWCOMER_SAYS, MAX_QUESTION, MAX_REFUSALS, MAX_RESTING_PER_CALLER, NEWCOMERS, RESTING,
};
use crate::server::newcomers::{Lane, RestingConnection};
use crate::server::routes::Answered;
use crate::server::socket::Socket;
use voile_memory::shares::Source;

const STREAM: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const CERTIFY: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
/// Bytes of a stream's answer to each message.
const ANSWER: usize = 1000;
/// Far beyond what a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Streams that answer everything that is said with a kilobyte, until they are told to end.
struct Talkative;

impl Discovery for Talkative {
    fn open(&self, request: Request<()>) -> Result<Box<dyn ServedStream>, Status> {
        match request.headers().get("authorization") {
            Some(_) => Ok(Box::new(Self)),
            None => Err(Status::unauthenticated("who calls?")),
        }
    }
}

impl ServedStream for Talkative {
    fn hear(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Status> {
        out.extend([b'.'; ANSWER]);
        match bytes {
            b"end" => Err(Status::invalid_argument("as you wish")),
            _ => Ok(()),
        }
    }

    fn poll(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<Status> {
        Poll::Pending
    }

    fn unread(&mut self, bytes: usize) -> Result<(), Status> {
        UNREAD.set(bytes);
        match bytes {
            0..MOST_UNREAD => Ok(()),
            _ => Err(Status::resource_exhausted("it does not read")),
        }
    }

    fn part(&mut self, _: &str) {}
}

/// Unread bytes at which a stream ends.
const MOST_UNREAD: usize = 10 * ANSWER;

thread_local! {
    /// Unread bytes of the last stream of a test.
    static UNREAD: Cell<usize> = const { Cell::new(0) };
}

/// Says how long a question was.
#[derive(Clone)]
struct Counting;

impl GrpcService for Counting {
    const PATHS: &'static [&'static str] = &[CERTIFY];

    fn admit(&self, head: Request<()>) -> Result<Request<()>, Status> {
        match head.headers().contains_key("authorization") {
            true => Ok(head),
            false => Err(Status::unauthenticated("who calls?")),
        }
    }

    fn answer(&self, request: Request<Body>) -> Answered {
        Box::pin(async move {
            let body = http_body_util::BodyExt::collect(request.into_body()).await;
            let length = body.expect("all of it").to_bytes().len();
            http::Response::new(Body::new(http_body_util::Full::new(
                length.to_string().into_bytes().into(),
            )))
        })
    }
}

/// The server's end of this.
async fn connection(far: TcpStream) -> DiscoveryConnection<Socket, Talkative, Counting> {
    connection_in(far, Lane::new(&RESTING))
}

/// The same, with a place in that lane while it follows no stream.
fn connection_in(far: TcpStream, lane: Lane) -> DiscoveryConnection<Socket, Talkative, Counting> {
    let source = Source::from(far.peer_addr().expect("its address").ip());
    let place = Lane::new(&NEWCOMERS).place_now(source.clone());
    let stream =
        GuardedConnection::new(Socket::from(far), place, RestingConnection { lane, source });
    let entrance = stream.connect_info();
    let shared = ConnectionsState::new(Routes {
        discovery: Talkative,
        certificates: Some(Counting),
    });
    DiscoveryConnection::new(stream, entrance, shared)
}

/// The other end.
struct Peer {
    socket: TcpStream,
    link: Link,
}

impl Peer {
    /// Connected to a server on this `LocalSet`.
    async fn new() -> Self {
        let (peer, end) = Self::of(Duration::from_secs(60)).await;
        // The sender lives as long as the test's process: the server does not end.
        std::mem::forget(end);
        peer
    }

    /// The same, of a connection that may last so long, and what ends its server.
    async fn of(longest: Duration) -> (Self, watch::Sender<()>) {
        Self::of_lane(longest, Lane::new(&RESTING)).await
    }

    /// The same, with a place in that lane while it follows no stream.
    async fn of_lane(longest: Duration, lane: Lane) -> (Self, watch::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let socket = TcpStream::connect(address).await.expect("a listener");
        let (far, _) = listener.accept().await.expect("a connection");
        let connection = connection_in(far, lane);
        let (end, ending) = watch::channel(());
        spawn_local(connection.serve(longest, ending));
        // Windows of 65,535 bytes, which are never given back.
        const SMALL: Config = Config {
            stream_window: 65_535,
            connection_window: 65_535,
            initial_streams: 10,
            ..PROVEN_HTTP2
        };
        let peer = Self {
            socket,
            link: Link::new(Http2::client(&SMALL, Pool::new())),
        };
        (peer, end)
    }

    /// Reads until the server ends the connection.
    async fn over(&mut self) {
        let mut room = [0; 4096];
        let over = async { while let Ok(1..) = self.socket.read(&mut room).await {} };
        timeout(DEADLINE, over).await.expect("the connection ends");
    }

    fn call(&self, path: &str, token: bool) -> (ResponseFuture, SendStream) {
        let mut head = Fields::new();
        head.push(":method", b"POST");
        head.push(":scheme", b"https");
        head.push(":authority", b"control");
        head.push(":path", path.as_bytes());
        if token {
            head.push("authorization", b"Bearer x");
        }
        self.link.send_request(head, false).expect("a stream")
    }

    /// Moves bytes until `done`.
    async fn until<T>(&mut self, mut done: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        loop {
            if let Poll::Ready(done) = done(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.say().await;
            let mut room = [0; 4096];
            let read = timeout(DEADLINE, self.socket.read(&mut room)).await;
            let read = read.expect("the server says something").expect("a server");
            assert!(read > 0, "the server ended the connection");
            self.link.borrow().receive(&room[..read]);
        }
    }

    async fn say(&mut self) {
        loop {
            self.link.borrow().replenish();
            let said = self.link.borrow().output().to_vec();
            if said.is_empty() {
                return;
            }
            self.socket.write_all(&said).await.expect("a server");
            self.link.borrow().wrote(said.len());
        }
    }

    /// Asks a question that is answered.
    async fn ask(&mut self) {
        let (mut response, mut say) = self.call(CERTIFY, true);
        say.send_copy(b"a question", true).expect("a call");
        assert_eq!(self.head(&mut response).await.status(), 200);
        let mut body = response.into_body();
        let answer = self.until(|context| body.poll_data(context)).await;
        assert_eq!(&answer.expect("an answer").expect("data")[..], b"10");
    }

    /// Lets the server have its turn, and takes what has come.
    async fn turn(&mut self) {
        self.say().await;
        tokio::task::yield_now().await;
        let mut room = [0; 4096];
        while let Ok(read @ 1..) = self.socket.try_read(&mut room) {
            self.link.borrow().receive(&room[..read]);
        }
    }

    async fn head(&mut self, response: &mut ResponseFuture) -> Fields {
        let head = self.until(|context| response.poll_head(context)).await;
        head.expect("a head")
    }

    /// Waits for the end of a stream, without giving back any window.
    async fn end(&mut self, body: &mut RecvStream) -> (usize, String) {
        let mut bytes = 0;
        loop {
            let next = self.until(|context| body.poll_data(context)).await;
            match next {
                Some(data) => bytes += data.expect("data").len(),
                None => break,
            }
        }
        let trailers = self.until(|context| body.poll_trailers(context)).await;
        let trailers = trailers.expect("it ended well").unwrap_or_default();
        (bytes, status(&trailers))
    }
}

fn status(fields: &Fields) -> String {
    let text = |name| String::from_utf8_lossy(fields.get(name).unwrap_or_default()).into_owned();
    format!("{} {}", text("grpc-status"), text("grpc-message"))
}

#[tokio::test]
async fn streams_are_heard_and_answered_and_end_with_a_status() {
    let test = async {
        let mut peer = Peer::new().await;
        let (mut response, mut say) = peer.call(STREAM, true);
        assert_eq!(peer.head(&mut response).await.status(), 200);
        let mut body = response.into_body();
        say.send_copy(b"hello", false).expect("a stream");
        let answer = peer.until(|context| body.poll_data(context)).await;
        assert_eq!(answer.expect("an answer").expect("data").len(), ANSWER);
        say.send_copy(b"end", false).expect("a stream");
        let (bytes, status) = peer.end(&mut body).await;
        assert_eq!((bytes, status.as_str()), (ANSWER, "3 as%20you%20wish"));
        // A caller that has no more to say ends it, too.
        let (mut response, mut say) = peer.call(STREAM, true);
        assert_eq!(peer.head(&mut response).await.status(), 200);
        say.send_copy(b"", true).expect("a stream");
        let (bytes, status) = peer.end(&mut response.into_body()).await;
        assert_eq!((bytes, status.as_str()), (0, "0 "));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn who_acknowledges_what_it_has_not_read_is_told_nothing_more() {
    let test = async {
        let mut peer = Peer::new().await;
        let (mut response, mut say) = peer.call(STREAM, true);
        assert_eq!(peer.head(&mut response).await.status(), 200);
        let mut body = response.into_body();
        // The window takes 65 answers; 9 more may wait.
        let mut heard = 0;
        let all = async {
            while say.send_copy(b"more", false).is_ok() {
                peer.turn().await;
                let mut nobody = Context::from_waker(Waker::noop());
                if let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut nobody) {
                    heard += data.len();
                }
            }
        };
        timeout(DEADLINE, all).await.expect("the stream ends");
        assert_eq!(heard, 65_535, "all that the window took");
        assert!(
            (MOST_UNREAD..MOST_UNREAD + 2 * ANSWER).contains(&UNREAD.get()),
            "{}",
            UNREAD.get()
        );
        drop(body);
        // Others on the connection are served all the same.
        let (mut response, _say) = peer.call(STREAM, false);
        assert_eq!(status(&peer.head(&mut response).await), "16 who%20calls%3F");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn who_reads_nothing_is_listened_to_until_so_much_waits_for_it() {
    /// Receive and send buffers of the kernel, as small as it allows.
    const KERNEL: u32 = 4096;
    /// Turns that each end has beyond the bound: what is read without one is many times as much after a few of them.
    const TURNS: usize = 20_000;
    const PINGS: usize = 1000;
    let test = async {
        let near = TcpSocket::new_v4().expect("a socket");
        near.set_send_buffer_size(KERNEL).expect("so little");
        near.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let listener = near.listen(1).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(KERNEL).expect("so little");
        let mut socket = socket.connect(address).await.expect("a listener");
        let (far, _) = listener.accept().await.expect("a connection");
        let connection = connection(far).await;
        let link = connection.link.clone();
        let (_end, ending) = watch::channel(());
        spawn_local(connection.serve(Duration::from_secs(60), ending));
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        socket.write_all(begin).await.expect("a server");
        // Each is to be answered by as much.
        let pings = b"\0\0\x08\x06\0\0\0\0\0--ping--".repeat(PINGS);
        let (mut said, mut most, mut turns) = (0, 0, 0);
        let all = async {
            while turns < TURNS {
                while let Ok(written @ 1..) = socket.try_write(&pings[said..]) {
                    said = (said + written) % pings.len();
                }
                tokio::task::yield_now().await;
                most = most.max(link.borrow().output().len());
                turns += usize::from(most > MAX_UNWRITTEN);
            }
        };
        timeout(DEADLINE, all).await.expect("it comes to the bound");
        let read = MAX_UNWRITTEN..MAX_UNWRITTEN + 2 * ROOM;
        assert!(read.contains(&most), "{most} bytes wait, and {read:?} may");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn questions_are_answered_whole_and_have_a_largest_size() {
    let test = async {
        let mut peer = Peer::new().await;
        for (path, length, expected) in [
            (CERTIFY, 3000, "3000"),
            (CERTIFY, MAX_QUESTION + 1, "8 the%20request%20is%20larger"),
            ("/nobody/knows", 3, "12 this%20address"),
        ] {
            let (mut response, mut say) = peer.call(path, true);
            say.send_data(vec![1; length].into(), true).expect("a call");
            let head = peer.head(&mut response).await;
            let mut said = status(&head);
            let mut body = response.into_body();
            while let Some(data) = peer.until(|context| body.poll_data(context)).await {
                said = String::from_utf8_lossy(&data.expect("data")).into_owned();
            }
            assert!(said.starts_with(expected), "{path}: {said}");
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_connection_ends_with_its_control_plane_and_when_it_is_old() {
    let calls = async {
        let (mut peer, end) = Peer::of(Duration::from_secs(60)).await;
        let (mut response, say) = peer.call(STREAM, true);
        assert_eq!(peer.head(&mut response).await.status(), 200);
        // It has had its turns, and waits.
        end.send_replace(());
        let (_, status) = peer.end(&mut response.into_body()).await;
        assert_eq!(status, "14 the%20control%20plane%20is%20shutting%20down");
        // A peer that learns of the end ends its stream as well, and then the connection is over.
        drop(say);
        peer.say().await;
        peer.over().await;
        // Young enough for a call on however busy a machine.
        let (mut peer, _end) = Peer::of(Duration::from_secs(1)).await;
        let (mut response, _say) = peer.call(STREAM, true);
        assert_eq!(peer.head(&mut response).await.status(), 200);
        peer.over().await;
    };
    LocalSet::new().run_until(calls).await;
}

#[tokio::test]
async fn a_call_is_refused_by_its_head_and_a_body_that_does_not_come_is_not_waited_for() {
    let test = async {
        let http = |path: &str, kind: &[u8]| {
            let mut head = Fields::new();
            head.push(":method", b"POST");
            head.push(":scheme", b"https");
            head.push(":authority", b"control");
            head.push(":path", path.as_bytes());
            head.push("content-type", kind);
            head
        };
        for (path, kind, expected) in [
            ("/nobody/knows", &b"application/grpc"[..], "200 12"),
            (CERTIFY, b"application/grpc+proto", "200 16"),
            (STREAM, b"application/grpc", "200 16"),
            ("/nobody/knows", b"text/plain", "404 "),
            (CERTIFY, b"application/json", "401 "),
            (STREAM, b"application/json", "401 "),
        ] {
            let mut peer = Peer::new().await;
            let (mut response, _say) = peer.link.send_request(http(path, kind), false).unwrap();
            let head = peer.head(&mut response).await;
            let status = String::from_utf8_lossy(head.get("grpc-status").unwrap_or_default());
            assert_eq!(format!("{} {status}", head.status()), expected, "{path}");
        }
        let mut peer = Peer::new().await;
        let (mut response, mut say) = peer.call(CERTIFY, true);
        say.send_copy(b"a word", false).expect("a call");
        peer.say().await;
        tokio::time::pause();
        let said = status(&peer.head(&mut response).await);
        assert!(said.starts_with("4 the%20request"), "{said}");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_newcomer_says_no_more_than_it_may_and_is_refused_only_so_often() {
    let test = async {
        let mut peer = Peer::new().await;
        for _ in 0..MAX_REFUSALS {
            let (mut response, _say) = peer.call("/nobody/knows", true);
            assert!(status(&peer.head(&mut response).await).starts_with("12"));
        }
        let _call = peer.call("/nobody/knows", true);
        peer.say().await;
        peer.over().await;

        let mut peer = Peer::new().await;
        peer.say().await;
        let pings = b"\0\0\x08\x06\0\0\0\0\0--ping--".repeat(MAX_NEWCOMER_SAYS / 17 + 1);
        // It may be cut off before it has said all.
        let _ = timeout(DEADLINE, peer.socket.write_all(&pings))
            .await
            .expect("it is read");
        peer.over().await;
    };
    LocalSet::new().run_until(test).await;
}

/// A proven caller cannot keep any number of connections: the oldest of those without a stream are closed.
#[tokio::test]
async fn connections_of_one_caller_without_a_stream_are_counted() {
    const TOO_MANY: usize = 4;
    let test = async {
        let lane = Lane::new(&RESTING);
        let (mut following, _end) = Peer::of_lane(DEADLINE, lane.clone()).await;
        let (mut response, mut say) = following.call(STREAM, true);
        assert_eq!(following.head(&mut response).await.status(), 200);
        let mut body = response.into_body();
        let mut resting = Vec::new();
        for number in 0..MAX_RESTING_PER_CALLER + TOO_MANY {
            let (mut peer, end) = Peer::of_lane(DEADLINE, lane.clone()).await;
            match number % 2 {
                0 => peer.ask().await,
                _ => {
                    let (mut response, mut say) = peer.call(STREAM, true);
                    assert_eq!(peer.head(&mut response).await.status(), 200);
                    say.send_copy(b"", true).expect("a stream");
                    peer.end(&mut response.into_body()).await;
                }
            }
            resting.push((peer, end));
        }
        for (peer, _) in &mut resting[..TOO_MANY] {
            peer.over().await;
        }
        let gone = async {
            while lane.len() > MAX_RESTING_PER_CALLER {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, gone)
            .await
            .expect("they give their places back");
        for (peer, _) in &mut resting[TOO_MANY..] {
            peer.ask().await;
        }
        say.send_copy(b"hello", false).expect("a stream");
        let answer = following.until(|context| body.poll_data(context)).await;
        assert_eq!(answer.expect("an answer").expect("data").len(), ANSWER);
        assert_eq!(lane.len(), MAX_RESTING_PER_CALLER, "none for a stream");
    };
    LocalSet::new().run_until(test).await;
}
