use motet::Engine;
use motet::monitor::{EngineEvent, Tier};

async fn report(engine: &Engine) {
    let mut snapshots = engine.snapshots();
    let mut events = engine.events();
    while let Some(seen) = snapshots.next().await {
        let mut slowest = std::time::Duration::ZERO;
        while let Some(event) = events.try_next() {
            match event {
                EngineEvent::Step(step) => slowest = slowest.max(step.busy),
                EngineEvent::Preempted { sequence, .. } => println!("{sequence} is preempted"),
                _ => {}
            }
        }
        let nodes = seen.trie.nodes.iter();
        let in_host = nodes.filter(|node| node.tier == Tier::Host).count();
        println!("{} run; slowest step {slowest:?}", seen.stats.running);
        println!("{in_host} of the nodes shown are in host memory");
    }
}

// The guide shows what stands above.

#[tokio::test]
async fn reports_continue_as_long_as_the_engine_lives() {
    use motet::Request;

    let engine = crate::speaking().await;
    let watched = async {
        let request = Request::tokens([1, 2, 3]).output_tokens_max(8);
        let stream = engine.submit(request).await.expect("it is accepted");
        stream.collect().await.expect("an output");
        let mut snapshots = engine.snapshots();
        for _ in 0..2 {
            snapshots.next().await.expect("a snapshot");
        }
    };
    tokio::select! {
        biased;
        () = report(&engine) => panic!("the engine lives"),
        () = watched => {}
    }
}
