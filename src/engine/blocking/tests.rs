use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

fn fair_queue(count_max: usize, bytes_max: usize) -> FairQueue<&'static str> {
    FairQueue::new(WorkLimits {
        count_max,
        bytes_max,
    })
}

fn user(name: &str) -> UserId {
    UserId::of(name)
}

#[test]
fn users_alternate_and_each_keeps_its_order() {
    let mut fair_queue = fair_queue(100, 100);
    for work in ["a1", "a2", "a3", "b1", "c1", "c2"] {
        fair_queue
            .push(user(&work[..1]), 1, work)
            .expect("capacity");
    }
    let order: Vec<_> = std::iter::from_fn(|| fair_queue.next()).collect();
    assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
    assert_eq!(
        (fair_queue.len(), fair_queue.bytes, fair_queue.order.len()),
        (0, 0, 0)
    );
}

#[test]
fn user_takes_at_most_half_of_the_free_capacity() {
    let mut fair_queue = fair_queue(6, 100);
    let mut fill = |name, number| {
        let pushed = (0..number).map_while(|_| fair_queue.push(user(name), 1, "work"));
        pushed.count()
    };
    assert_eq!(fill("greedy", 10), 3, "half of the capacity");
    assert_eq!(
        fill("other", 10),
        2,
        "the rest still holds work of a third user"
    );
    assert_eq!(fill("third", 10), 1);
}

#[test]
fn bytes_are_bounded_except_for_a_single_work() {
    let mut fair_queue = fair_queue(10, 100);
    let large = fair_queue
        .push(user("a"), 1_000, "large")
        .expect("no other work waits");
    assert_eq!(fair_queue.push(user("b"), 1, "small"), None);
    assert_eq!(fair_queue.remove(user("a"), large), Some("large"));
    assert_eq!(fair_queue.remove(user("a"), large), None, "once only");
    fair_queue.push(user("a"), 50, "half").expect("capacity");
    assert_eq!(
        fair_queue.push(user("a"), 1, "more"),
        None,
        "the rest is reserved for others"
    );
    fair_queue.push(user("b"), 25, "quarter").expect("capacity");
    assert_eq!(fair_queue.next(), Some("half"));
    assert_eq!(fair_queue.bytes, 25);
}

#[tokio::test]
async fn cancelled_work_is_not_run_and_a_panic_is_reported() {
    let blocking = Blocking::new(
        1,
        WorkLimits {
            count_max: 3,
            bytes_max: 100,
        },
    );
    let (open, release_receiver) = mpsc::channel::<()>();
    let (began, has_started) = oneshot::channel();
    let first = {
        let blocking = blocking.clone();
        tokio::spawn(async move {
            let work = move || {
                began.send(()).ok();
                release_receiver.recv().ok();
                1
            };
            blocking.run(user("a"), 1, work).await
        })
    };
    has_started.await.expect("the thread is free");
    let done = Arc::new(AtomicUsize::new(0));
    let count = |name: &'static str| {
        let (blocking, done) = (blocking.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let work = move || done.fetch_add(1, Ordering::SeqCst);
            blocking.run(user(name), 1, work).await
        })
    };
    let (cancelled, remaining) = (count("b"), count("c"));
    while blocking.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    let full = blocking.run(user("c"), 1, || 0).await;
    assert_eq!(full, Err(BlockingError::Full { retry_after: None }));
    cancelled.abort();
    assert!(cancelled.await.expect_err("aborted").is_cancelled());
    assert_eq!(blocking.waiting(), 1);
    open.send(()).expect("the first work waits");
    assert_eq!(first.await.expect("no panic"), Ok(1));
    assert_eq!(remaining.await.expect("no panic"), Ok(0));
    assert_eq!(done.load(Ordering::SeqCst), 1);

    let failed = blocking.run(user("a"), 1, || panic!("injected")).await;
    assert_eq!(failed, Err::<(), _>(BlockingError::Panicked));
    assert_eq!(blocking.run(user("a"), 1, || 2).await, Ok(2));
}

#[test]
fn queue_without_capacity_takes_a_single_work() {
    let mut fair_queue = fair_queue(0, 0);
    assert!(fair_queue.push(user("a"), 1, "alone").is_some());
    assert_eq!(fair_queue.push(user("b"), 1, "beside it"), None);
    assert_eq!(fair_queue.next(), Some("alone"));
}

/// The clock advances only while no thread works, so a timeout shows that none does.
#[tokio::test(start_paused = true)]
async fn work_pushed_while_the_last_thread_ends_gets_a_thread() {
    let limits = WorkLimits {
        count_max: 3,
        bytes_max: 100,
    };
    let blocking = Blocking::new(1, limits);
    blocking.0.lock().working = 1;
    let mut last = Worker::new(&blocking.0);
    assert!(last.next().is_none(), "no work is left");
    // The worker is not dropped yet.
    let done = tokio::time::timeout(Duration::from_secs(1), blocking.run(user("a"), 1, || 7));
    assert_eq!(done.await, Ok(Ok(7)));
    drop(last);
    assert_eq!(blocking.run(user("a"), 1, || 8).await, Ok(8));
}

#[test]
fn worker_that_never_ran_is_not_counted() {
    let limits = WorkLimits {
        count_max: 3,
        bytes_max: 100,
    };
    let blocking = Blocking::new(1, limits);
    blocking.0.lock().working = 1;
    drop(Worker::new(&blocking.0));
    assert_eq!(blocking.0.lock().working, 0);
}
