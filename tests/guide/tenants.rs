use std::time::Duration;

use motet::Request;
use motet::request::Priority;

fn for_a_tenant(request: Request, tenant: &str) -> Request {
    request
        .user(tenant) // a fair share within its class
        .cache_salt(tenant) // shares no cached state with other salts
        .priority(Priority::Normal) // Background, Normal, Urgent
        .start_within(Duration::from_secs(10)) // else it is dropped before it is computed
        .finish_within(Duration::from_secs(120)) // else it ends with the tokens so far
}

// The guide shows what stands above.

#[tokio::test]
async fn tenants_share_no_state() {
    let engine = crate::speaking().await;
    let mut cached = Vec::new();
    for tenant in ["ada", "bob", "ada"] {
        let request = Request::text("one prompt of all").output_tokens_max(4);
        let request = for_a_tenant(request, tenant);
        let stream = engine.submit(request).await.expect("it is accepted");
        let finish = stream.collect().await.expect("an output").finish;
        cached.push(finish.usage.cached_tokens);
    }
    assert_eq!(cached[..2], [0, 0]);
    assert!(cached[2] > 0, "its own prefix is found");
}
