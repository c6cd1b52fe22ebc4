//! Memory and allocations that a proxy costs the control plane: bytes held for a waiting stream, allocations of a push, and bytes
//! left by proxies that came and went. They are counted on the control plane's threads, over TLS and with all state kept of a
//! proxy. The proxies run on another thread, which is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::fmt::Write as _;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

use tokio::sync::{mpsc, oneshot};
use voile_proto::type_url::{ADDRESS, CLUSTER, PROXY_CONFIGURATION, SERVICE_POLICY};
use voile_xds::client::{ClientConfig, Credential};

use crate::harness::{Client, Mesh};

struct Counting;

thread_local! {
    /// True on the proxies' thread and on threads that work for it. All others are the control plane's.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn count(allocations: u64, bytes: i64) {
    // A thread that is ending counts nothing.
    if !ASKS.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[expect(unsafe_code, reason = "an allocator can only be counted by being one")]
// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout.size()));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -size(layout.size()));
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count(1, size(new) - size(layout.size()));
        unsafe { System.realloc(pointer, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SUBJECT: &str = "footprint::subject";
/// Set in the process that is counted, to what is counted.
const ORDERS: &str = "VOILE_TEST_FOOTPRINT";

/// Services that each proxy uses, of two workloads each.
const SERVICES: usize = 10;
/// Proxies before those that are counted, so that what is made once is not, and those counted.
const FIRST: usize = 10;
const COUNTED: usize = 50;

/// Bytes that one idle stream holds. Of these 32 KB are buffers that HTTP/2 and TLS make with each connection, and most of them
/// are never touched.
const HELD: i64 = 63_000;
/// Allocations of a push and its acknowledgement, with what the questions in between cost.
const ALLOCATIONS_OF_A_PUSH: u64 = 40;

/// Times that a proxy comes and goes before it is counted, so that what is remembered of so many and no more (events, sessions of TLS,
/// names that nobody has) is full, and times that are counted.
const COMINGS: usize = 3 * 256;
const COUNTED_COMINGS: usize = 2 * 256;
/// Upper bound of the bytes that these leave altogether: less than 100 each.
const LEFT: i64 = 50 * 1024;
/// Looks in a row that find no less.
const LOOKS: usize = 300;
/// Events and workloads that are shown afterwards, at most.
const EVENTS: usize = 1000;
const NOBODIES: usize = 256;

/// The text of the mesh; an edit gives the first workload another version.
fn workload(number: usize, version: &str) -> String {
    let service = number % SERVICES;
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: w{number}\n  namespace: shop\n  labels: {{app: s{service}, version: {version}, sidecar.istio.io/inject: \"true\"}}\n\
         spec: {{serviceAccountName: client, containers: [{{name: app, image: none}}]}}\nstatus: {{podIP: 127.1.0.{}}}\n",
        number + 1
    )
}

fn mesh() -> String {
    let mut text = String::new();
    for service in 0..SERVICES {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{service}, namespace: shop}}\nspec:\n  selector: {{app: s{service}}}\n  ports: [{{name: http, port: 80}}]\n"
        );
    }
    (1..2 * SERVICES).for_each(|number| text += &workload(number, "v1"));
    text
}

/// Orders for the serving thread.
enum Order {
    Edit(String),
    /// Counts the occurrences of a text on a page. The serving thread reads the page: memory made on one side and dropped on the
    /// other would count as held for ever.
    Count(&'static str, &'static str, oneshot::Sender<usize>),
    /// Bytes that are held when nobody comes and so many streams are there; no more than so many are as good as the least.
    Rest(usize, i64, oneshot::Sender<i64>),
}

/// Starts a control plane on a thread of its own, until orders are given no more.
async fn serve() -> (mpsc::UnboundedSender<Order>, ClientConfig, [Credential; 2]) {
    let (order, mut orders) = mpsc::unbounded_channel();
    let (ready, is_ready) = oneshot::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let mut mesh = Mesh::start(&mesh()).await;
            mesh.edit("first.yaml", &workload(0, "v1"));
            mesh.report(|seen| seen.changed).await;
            let credentials = [Some("w0"), None].map(|pod| mesh.token("client", pod));
            assert!(ready.send((mesh.client_config(), credentials)).is_ok());
            while let Some(order) = orders.recv().await {
                match order {
                    Order::Edit(text) => mesh.edit("first.yaml", &text),
                    Order::Rest(streams, enough, answer) => {
                        let held = held_at_rest(&mesh, streams, enough).await;
                        answer.send(held).unwrap();
                    }
                    Order::Count(path, text, answer) => {
                        let page = mesh.get(path).await;
                        answer.send(page.matches(text).count()).unwrap();
                    }
                }
            }
            mesh.stop().await;
        });
    });
    let (config, credentials) = is_ready.await.unwrap();
    (order, config, credentials)
}

/// Connections take a moment to end: the least that is held while nobody comes.
async fn held_at_rest(mesh: &Mesh, streams: usize, enough: i64) -> i64 {
    let (mut least, mut looks) = (i64::MAX, 0);
    while looks < LOOKS && least > enough {
        let page = mesh.get("/debug/status").await;
        let held = BYTES.load(Ordering::Relaxed) - size(page.capacity());
        let is_alone = page.matches("\"stream\": ").count() == streams;
        looks = if is_alone && held >= least {
            looks + 1
        } else {
            0
        };
        if is_alone {
            least = least.min(held);
        }
    }
    least
}

struct Crowd {
    order: mpsc::UnboundedSender<Order>,
    config: ClientConfig,
    credential: Credential,
    /// The same identity's, of no pod.
    unbound: Credential,
    clients: Vec<Client>,
}

impl Crowd {
    async fn grow(&mut self, number: usize) {
        for _ in 0..number {
            let (config, credential) = (self.config.clone(), self.credential.clone());
            let client = Client::start(config, credential, |_| None);
            let services: Vec<String> = (0..SERVICES)
                .map(|service| format!("shop/s{service}.shop.svc.cluster.local"))
                .collect();
            let services: Vec<&str> = services.iter().map(String::as_str).collect();
            client.ask(PROXY_CONFIGURATION, &["shop/w0"]);
            client.ask(ADDRESS, &services);
            client.ask(SERVICE_POLICY, &services);
            self.clients.push(client);
        }
        let all = 1 + 4 * SERVICES;
        for client in &mut self.clients {
            client.until(|told| told.held.len() == all).await;
        }
        self.rest().await;
    }

    /// Waits until all that was sent is acknowledged.
    async fn rest(&self) {
        loop {
            let synced = self.count("/debug/status", "\"synced\": true").await;
            if synced == self.clients.len() {
                return;
            }
        }
    }

    async fn count(&self, path: &'static str, text: &'static str) -> usize {
        let (answer, count) = oneshot::channel();
        let order = Order::Count(path, text, answer);
        self.order.send(order).ok().unwrap();
        count.await.unwrap()
    }

    /// Comes with an identity that is good, as a stock Envoy of a workload that is nobody's, is told what there is, and goes.
    async fn come_and_go(&self, number: usize) {
        let (mut config, credential) = (self.config.clone(), self.unbound.clone());
        config.node.user_agent_name = "envoy".to_owned();
        config.node.id = format!("sidecar~127.1.0.1~nobody-{number}.shop~shop.svc.cluster.local");
        let mut client = Client::start(config, credential, |_| None);
        client.ask(ADDRESS, &["shop/s0.shop.svc.cluster.local"]);
        client.ask(CLUSTER, &["*"]);
        client.until(|told| told.updates == 2).await;
    }

    /// Many times; bytes that are held when the last is gone.
    async fn come_and_go_again(&mut self, numbers: Range<usize>, enough: i64) -> i64 {
        for number in numbers {
            self.come_and_go(number).await;
        }
        let (answer, held) = oneshot::channel();
        let order = Order::Rest(self.clients.len(), enough, answer);
        self.order.send(order).ok().unwrap();
        held.await.unwrap()
    }

    /// Changes what everybody uses; allocations until all have acknowledged it.
    async fn change(&mut self, version: &str) -> u64 {
        let arrived: Vec<usize> = self
            .clients
            .iter()
            .map(|one| one.told.borrow().arrived)
            .collect();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        self.order
            .send(Order::Edit(workload(0, version)))
            .ok()
            .unwrap();
        for (client, before) in self.clients.iter_mut().zip(arrived) {
            client.until(|told| told.arrived > before).await;
        }
        self.rest().await;
        ALLOCATIONS.load(Ordering::Relaxed) - before
    }

    /// The least of several: on a busy machine the page is asked for more often, which is counted, too.
    async fn changes(&mut self, versions: [&str; 4]) -> u64 {
        let mut least = u64::MAX;
        for version in versions {
            least = least.min(self.change(version).await);
        }
        least
    }
}

/// Runs `subject` in a process of its own: whatever else this binary tests starts control planes, too.
fn counted(what: &str) -> String {
    let counted = Command::new(env::current_exe().unwrap())
        .args(["--exact", SUBJECT, "--ignored", "--nocapture"])
        .env(ORDERS, what)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&counted.stdout);
    println!("{said}");
    assert!(counted.status.success(), "{said}{counted:?}");
    said.into_owned()
}

#[test]
fn a_stream_that_waits_holds_little_and_a_push_allocates_little() {
    let said = counted("streams");
    assert!(said.contains(" bytes for a stream, "), "{said}");
}

#[test]
fn a_proxy_that_comes_back_in_a_loop_leaves_nothing_behind_and_others_are_served() {
    let said = counted("comings");
    assert!(said.contains(" bytes left by "), "{said}");
}

#[test]
#[ignore = "the tests above run it in a process of its own"]
fn subject() {
    let Ok(what) = env::var(ORDERS) else {
        return;
    };
    ASKS.set(true);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().on_thread_start(|| ASKS.set(true));
    let runtime = runtime.build().unwrap();
    match what.as_str() {
        "streams" => runtime.block_on(count_streams()),
        _ => runtime.block_on(count_comings()),
    }
}

async fn crowd() -> Crowd {
    let (order, config, [credential, unbound]) = serve().await;
    Crowd {
        order,
        config,
        credential,
        unbound,
        clients: Vec::new(),
    }
}

async fn count_comings() {
    let mut crowd = crowd().await;
    crowd.grow(1).await;
    let before = crowd.come_and_go_again(0..COMINGS, i64::MIN).await;
    let end = COMINGS + COUNTED_COMINGS;
    let after = crowd.come_and_go_again(COMINGS..end, before + LEFT).await;
    // Proxies that stay get a change.
    crowd.change("v2").await;
    let left = after - before;
    println!("{left} bytes left by {COUNTED_COMINGS} comings");
    assert!(left <= LEFT, "{left} bytes left by {COUNTED_COMINGS}");
    let last = format!("\"shop/nobody-{}\"", end - 1);
    let last = crowd.count("/debug/status", last.leak()).await;
    let nobodies = crowd.count("/debug/status", "\"shop/nobody-").await;
    assert_eq!(last, 1, "who came last is named");
    assert!(nobodies <= NOBODIES, "{nobodies} nobodies");
    let events = crowd.count("/debug/events?after=0", "\"number\":").await;
    assert!((100..=EVENTS).contains(&events), "{events} events");
}

async fn count_streams() {
    let mut crowd = crowd().await;
    crowd.grow(FIRST).await;
    let few = crowd.changes(["v2", "v3", "v4", "v5"]).await;
    let before = BYTES.load(Ordering::Relaxed);
    crowd.grow(COUNTED).await;
    let many = crowd.changes(["v6", "v7", "v8", "v9"]).await;
    let held = (BYTES.load(Ordering::Relaxed) - before) / size(COUNTED);
    let pushed = many.saturating_sub(few) / COUNTED as u64;
    println!("{held} bytes for a stream, {pushed} allocations for a push");
    assert!(held <= HELD, "{held} bytes for a stream");
    assert!(pushed <= ALLOCATIONS_OF_A_PUSH, "{pushed} allocations");
}
