//! One alarm clock per worker thread, for long waits that nearly never end: idle connections, heads, pooled connections.
//!
//! A timer of the runtime turns every wait for sockets into one with a timeout. The kernel arms and cancels it each
//! time, and the runtime reads the time once more. All alarms share one timerfd instead, armed for the earliest. A
//! worker that requests wake touches none of it, and an idle worker sleeps until an alarm is due.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

thread_local! {
    static CLOCK: RefCell<Option<Rc<Clock>>> = const { RefCell::new(None) };
}

/// See the module.
pub(super) struct Clock {
    fd: AsyncFd<OwnedFd>,
    /// Alarms by time; the number distinguishes alarms of one moment.
    alarms: RefCell<BTreeMap<(Instant, u64), Rc<AlarmBell>>>,
    next: Cell<u64>,
    /// When the timerfd rings. It may be for an alarm that was cancelled since.
    armed: Cell<Option<Instant>>,
}

struct AlarmBell {
    rang: Cell<bool>,
    waker: RefCell<Waker>,
}

/// Keeps this thread's clock running; without it timers are the runtime's.
pub(crate) struct ClockTask(tokio::task::AbortHandle);

impl Drop for ClockTask {
    fn drop(&mut self) {
        self.0.abort();
        // A thread that is ending may have none any more.
        let _ = CLOCK.try_with(|clock| clock.replace(None));
    }
}

/// Starts this thread's clock, on the runtime of local tasks that runs here.
pub(crate) fn start() -> io::Result<ClockTask> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let clock = Rc::new(Clock {
        fd: register(fd)?,
        alarms: RefCell::default(),
        next: Cell::new(0),
        armed: Cell::new(None),
    });
    CLOCK.with(|current| current.replace(Some(Rc::clone(&clock))));
    let task = tokio::task::spawn_local(async move { clock.run().await });
    Ok(ClockTask(task.abort_handle()))
}

#[expect(
    unsafe_code,
    reason = "registering trusts the descriptor to stay the same, which an owned one does"
)]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and the same file until it is dropped, which the `AsyncFd` does after itself.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(|error| error.into_parts().1)
}

/// This thread's clock, if one was started.
pub(super) fn current() -> Option<Rc<Clock>> {
    CLOCK.with_borrow(Clone::clone)
}

impl Clock {
    async fn run(&self) {
        // It fails only with the runtime itself.
        while let Ok(mut ready) = self.fd.readable().await {
            // The number of expirations does not matter; a false alarm reads nothing.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            ready.clear_ready();
            self.ring(Instant::now());
        }
    }

    /// Wakes the tasks that are due and arms the timer for the next.
    fn ring(&self, now: Instant) {
        self.armed.set(None);
        loop {
            let mut alarms = self.alarms.borrow_mut();
            let Some(first) = alarms.first_entry() else {
                return;
            };
            let at = first.key().0;
            if at > now {
                drop(alarms);
                return self.arm(at);
            }
            let bell = first.remove();
            drop(alarms);
            bell.rang.set(true);
            bell.waker.borrow().wake_by_ref();
        }
    }

    /// Makes sure that it rings at this moment at the latest.
    fn arm(&self, at: Instant) {
        if self.armed.get().is_some_and(|armed| armed <= at) {
            return;
        }
        // Zero would disarm it.
        let wait = at
            .saturating_duration_since(Instant::now())
            .max(Duration::from_nanos(1));
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        match timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec) {
            Ok(_) => self.armed.set(Some(at)),
            Err(error) => tracing::error!(%error, "timer not armed"),
        }
    }
}

/// A moment at which a task is woken.
pub(super) struct Alarm {
    clock: Rc<Clock>,
    key: (Instant, u64),
    bell: Rc<AlarmBell>,
}

impl Alarm {
    pub(super) fn new(clock: Rc<Clock>, at: Instant) -> Self {
        let number = clock.next.get();
        clock.next.set(number + 1);
        let bell = Rc::new(AlarmBell {
            rang: Cell::new(false),
            waker: RefCell::new(Waker::noop().clone()),
        });
        let mut alarm = Self {
            clock,
            key: (at, number),
            bell,
        };
        alarm.set(at);
        alarm
    }

    pub(super) fn at(&self) -> Instant {
        self.key.0
    }

    /// Rings at another moment.
    pub(super) fn reset(&mut self, at: Instant) {
        self.cancel();
        self.set(at);
    }

    fn set(&mut self, at: Instant) {
        self.key.0 = at;
        self.bell.rang.set(false);
        let bell = Rc::clone(&self.bell);
        self.clock.alarms.borrow_mut().insert(self.key, bell);
        self.clock.arm(at);
    }

    fn cancel(&self) {
        self.clock.alarms.borrow_mut().remove(&self.key);
    }

    /// Returns true if the clock rang; if not, the task is woken when it does.
    pub(super) fn rang(&self, cx: &Context<'_>) -> bool {
        if self.bell.rang.get() {
            return true;
        }
        self.bell.waker.borrow_mut().clone_from(cx.waker());
        false
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::task::LocalSet;

    use super::super::timer::Timer;
    use super::*;

    const MOMENT: Duration = Duration::from_millis(4);

    fn play(act: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        LocalSet::new().block_on(&runtime, act);
    }

    /// Waits until the last of these deadlines, asking for each in turn as a connection does.
    async fn wait(timer: &mut Timer, deadlines: &[Instant]) {
        for deadline in deadlines {
            // All but the last are left at once for the next.
            let last = deadlines.last() == Some(deadline);
            poll_fn(|cx| match timer.passed(cx, *deadline) || !last {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    }

    fn waiting() -> usize {
        current().map_or(0, |clock| clock.alarms.borrow().len())
    }

    #[test]
    fn alarms_ring_in_order_wherever_they_were_moved_and_none_is_left() {
        play(async {
            let _running = start().expect("a clock");
            let begun = Instant::now();
            let rang = Rc::new(RefCell::new(Vec::new()));
            // Later, earlier and twice moved deadlines, in moments; the last one counts.
            let plans = [&[9, 3][..], &[1, 6], &[4], &[2, 8, 5], &[0]];
            let tasks = plans.map(|moments| {
                let rang = Rc::clone(&rang);
                tokio::task::spawn_local(async move {
                    let deadlines: Vec<_> = moments.iter().map(|at| begun + MOMENT * *at).collect();
                    wait(&mut Timer::default(), &deadlines).await;
                    assert!(deadlines.last().is_some_and(|at| Instant::now() >= *at));
                    rang.borrow_mut().push(moments.last().copied());
                })
            });
            for task in tasks {
                task.await.expect("it rings");
            }
            assert_eq!(*rang.borrow(), [0, 3, 4, 5, 6].map(Some));
            assert_eq!(waiting(), 0);
        });
    }

    #[test]
    fn the_earlier_of_two_deadlines_rings_whichever_is_asked_for_first() {
        play(async {
            let _running = start().expect("a clock");
            let near = Instant::now() + MOMENT;
            let far = near + Duration::from_secs(3600);
            let (mut timer, mut polls) = (Timer::default(), 0);
            poll_fn(|cx| {
                polls += 1;
                assert!(polls < 10, "it rings for nothing");
                assert!(!timer.passed(cx, far));
                match timer.passed(cx, near) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            assert!(Instant::now() >= near);
        });
    }

    #[test]
    fn a_dropped_timer_is_forgotten_and_one_without_a_clock_rings() {
        play(async {
            let running = start().expect("a clock");
            let mut timer = Timer::default();
            let far = Instant::now() + Duration::from_secs(3600);
            assert!(!poll_fn(|cx| Poll::Ready(timer.passed(cx, far))).await);
            assert_eq!(waiting(), 1);
            drop(timer);
            assert_eq!(waiting(), 0);
            drop(running);
            assert!(current().is_none());
            wait(&mut Timer::default(), &[Instant::now() + MOMENT]).await;
        });
    }
}
