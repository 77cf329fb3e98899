use motet::Engine;
use motet::cache::BlockEvent;

async fn publish_blocks(engine: &Engine) -> anyhow::Result<()> {
    let mut blocks = engine.follow_blocks().await?; // the first batch holds all cached blocks
    while let Some(batch) = blocks.next().await {
        for event in batch.events.iter() {
            match event {
                BlockEvent::Stored { tier, hashes, .. } => {
                    println!("{tier:?}: {} more", hashes.len());
                }
                BlockEvent::Removed { tier, hashes, .. } => {
                    println!("{tier:?}: {} fewer", hashes.len());
                }
                _ => println!("none"),
            }
        }
    }
    Ok(())
}

// The guide shows what stands above.

#[tokio::test]
async fn events_continue_as_long_as_the_engine_lives() {
    use motet::Request;

    let engine = crate::speaking().await;
    let computed = async {
        let mut blocks = engine.follow_blocks().await.expect("two may follow");
        blocks.next().await.expect("all cached blocks");
        let prompt = Request::tokens((1..100).collect::<Vec<_>>());
        engine.warm(prompt).await.expect("it is computed");
        blocks.next().await.expect("the computed blocks");
    };
    tokio::select! {
        biased;
        result = publish_blocks(&engine) => panic!("the engine lives: {result:?}"),
        () = computed => {}
    }
}
