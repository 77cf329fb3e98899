use motet::{Engine, Request};

async fn stream(engine: &Engine) -> anyhow::Result<()> {
    let mut stream = engine.submit(Request::tokens([1, 2, 3])).await?;
    while let Some(piece) = stream.next().await {
        let piece = piece?; // an error is the last item of an incomplete output
        print!("{}", piece.text);
        if let Some(finish) = piece.finish {
            // the last item of a complete output
            let cached = finish.usage.cached_tokens;
            println!("{:?}, {cached} tokens from the cache", finish.reason);
        }
    }
    Ok(())
}

// The guide shows what stands above.

#[tokio::test]
async fn a_stream_is_read_to_its_end() {
    let engine = crate::speaking().await;
    stream(&engine).await.expect("an output");
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.output_tokens), (1, 256));
}
