//! The metrics that routers and autoscalers read, under vLLM's names: the Gateway API's
//! endpoint picker, which llm-d uses, and vLLM's production stack. `docs/metrics.md` lists
//! them, and a test compares that list with this file.

use std::fmt::Write;

use motet::Engine;
use motet::monitor::DraftCounts;

use super::CacheBlocks;

/// A metric, its kind, and its value.
struct Metric {
    name: &'static str,
    kind: &'static str,
    value: fn(&Reading) -> f64,
}

/// The engine's figures at one moment.
struct Reading {
    running: usize,
    waiting: usize,
    used_fraction: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    asked_tokens: u64,
    hit_tokens: u64,
    drafts: DraftCounts,
}

#[rustfmt::skip] // a table
const METRICS: [Metric; 11] = [
    Metric { name: "vllm:num_requests_running", kind: "gauge", value: |now| now.running as f64 },
    Metric { name: "vllm:num_requests_waiting", kind: "gauge", value: |now| now.waiting as f64 },
    Metric { name: "vllm:kv_cache_usage_perc", kind: "gauge", value: |now| now.used_fraction },
    Metric { name: "vllm:gpu_cache_usage_perc", kind: "gauge", value: |now| now.used_fraction },
    Metric { name: "vllm:prompt_tokens_total", kind: "counter", value: |now| now.prompt_tokens as f64 },
    Metric { name: "vllm:generation_tokens_total", kind: "counter", value: |now| now.output_tokens as f64 },
    Metric { name: "vllm:prefix_cache_queries_total", kind: "counter", value: |now| now.asked_tokens as f64 },
    Metric { name: "vllm:prefix_cache_hits_total", kind: "counter", value: |now| now.hit_tokens as f64 },
    Metric { name: "vllm:spec_decode_num_drafts_total", kind: "counter", value: |now| now.drafts.drafts as f64 },
    Metric { name: "vllm:spec_decode_num_draft_tokens_total", kind: "counter", value: |now| now.drafts.draft_tokens as f64 },
    Metric { name: "vllm:spec_decode_num_accepted_tokens_total", kind: "counter", value: |now| now.drafts.accepted_tokens as f64 },
];
const CACHE_INFO: &str = "vllm:cache_config_info";

/// All metrics in Prometheus' text format. The label is the model's name.
pub(crate) fn render(engine: &Engine, model: &str) -> String {
    let (now, model) = (Reading::of(engine), escaped(model));
    let mut text = String::new();
    for Metric { name, kind, value } in &METRICS {
        let value = value(&now);
        write!(
            text,
            "# TYPE {name} {kind}\n{name}{{model_name=\"{model}\"}} {value}\n"
        )
        .expect("writing to a string does not fail");
    }
    let blocks = CacheBlocks::of(engine);
    let (block_tokens, blocks) = (blocks.tokens, blocks.total());
    let labels =
        format!("model_name=\"{model}\",block_size=\"{block_tokens}\",num_gpu_blocks=\"{blocks}\"");
    write!(
        text,
        "# TYPE {CACHE_INFO} gauge\n{CACHE_INFO}{{{labels}}} 1\n"
    )
    .expect("writing to a string does not fail");
    text
}

impl Reading {
    fn of(engine: &Engine) -> Self {
        let stats = engine.stats();
        Self {
            running: stats.running,
            waiting: stats.waiting,
            used_fraction: CacheBlocks::of(engine).used_share(),
            prompt_tokens: stats.prompt_tokens,
            output_tokens: stats.output_tokens,
            asked_tokens: stats.cache.asked_tokens,
            hit_tokens: stats.cache.hit_tokens,
            drafts: stats.drafts,
        }
    }
}

/// A label's value, escaped for Prometheus.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;
    use crate::start;

    /// The metrics of the page with vLLM's names, and their kinds.
    fn documented() -> BTreeMap<String, String> {
        let page = include_str!("../../../../docs/metrics.md");
        let rows = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `vllm:"));
        let cells = rows.map(|row| row.split('|').map(str::trim));
        cells
            .map(|mut cells| {
                let name = cells.next().expect("a name").trim_end_matches('`');
                (
                    format!("vllm:{name}"),
                    cells.next().expect("a kind").to_owned(),
                )
            })
            .collect()
    }

    #[tokio::test]
    async fn the_page_lists_exactly_what_there_is() {
        let arguments = Arguments::parse_from(["server", "--oracle"]);
        let engine = start::engine(&arguments).await.expect("the oracle starts");
        let text = render(&engine, "a \"model\"");
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let kinds = kinds.map(|line| line.split_once(' ').expect("a name and a kind"));
        let kinds: BTreeMap<_, _> = kinds.map(|(n, k)| (n.to_owned(), k.to_owned())).collect();
        assert_eq!(documented(), kinds);
        for name in kinds.keys() {
            let series = format!("{name}{{model_name=\"a \\\"model\\\"\"");
            let found = text.lines().filter(|line| line.starts_with(&series));
            assert_eq!(found.count(), 1, "{series}");
        }
    }
}
