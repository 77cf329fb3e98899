//! The answers to requests about a model.

use std::collections::BTreeMap;

use motet::model::{DeviceMemory, Model};
use serde_json::{Value, json};

use crate::programs::Result;
use crate::programs::model::decoder::{Batch, loss, prefill};
use crate::programs::model::device::{Allocated, Device};
use crate::programs::model::memory::Memory;
use crate::programs::products::Products;
use crate::protocol::{self, Request};

/// Answers requests until standard input ends.
pub(crate) fn serve<M: Model>(model: M, device: &impl Device<M>) -> Result<()> {
    let mut host = Host {
        model,
        device,
        batches: BTreeMap::new(),
        memory: None,
        products: Products::default(),
    };
    Ok(protocol::serve(|request| host.answer(request))?)
}

struct Host<'a, M: Model, D> {
    model: M,
    device: &'a D,
    batches: BTreeMap<String, Batch<M>>,
    /// The memory of the last request.
    memory: Option<Memory>,
    products: Products,
}

impl<M: Model, D: Device<M>> Host<'_, M, D> {
    fn answer(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Hello => {
                let spec = self.model.spec();
                Ok(json!({
                    "name": format!("motet {}", env!("CARGO_PKG_VERSION")),
                    "model": spec.name,
                    "vocab_size": spec.vocab_size,
                    "weight_bytes": self.device.weight_bytes(),
                    "weights": self.device.weights(),
                    "cached_token_bytes": spec.segment_bytes(motet::model::SegmentSize::whole(1)),
                    "layers": spec.layer_groups.iter().map(|group| group.layers).sum::<usize>(),
                }))
            }
            Request::Matmul {
                rows,
                inner,
                columns,
            } => {
                let seconds = self.device.matmul_seconds(rows, inner, columns)?;
                Ok(json!({ "seconds": seconds }))
            }
            Request::Products(asked) => Ok(json!({ "seconds": self.products.seconds(&asked)? })),
            Request::ReadMemory { bytes, times } => {
                let seconds = self.read_memory(bytes, times);
                Ok(json!({ "seconds": seconds }))
            }
            Request::Prefill { prompt } => {
                let (seconds, token) = prefill(&mut self.model, &prompt)?;
                Ok(json!({ "seconds": seconds, "tokens": [[token]] }))
            }
            Request::DecodeOpen {
                batch,
                prefix,
                prompts,
            } => {
                let opened = Batch::open(&mut self.model, prefix.as_ref(), &prompts)?;
                let tokens = opened.last_tokens();
                self.batches.insert(batch, opened);
                Ok(json!({ "tokens": [tokens] }))
            }
            Request::DecodeRun { batch, steps } => self.run(&batch, steps),
            Request::DecodeClose { batch } => {
                self.batches.remove(&batch);
                Ok(json!({}))
            }
            Request::Loss { text, tokens } => {
                let text = self.device.tokens(&text)?;
                let text = text.get(..tokens).ok_or("the text has too few tokens")?;
                Ok(json!({ "loss": loss(&mut self.model, text)? }))
            }
            other => Err(format!("not about a model: {other:?}").into()),
        }
    }

    fn read_memory(&mut self, bytes: usize, times: usize) -> f64 {
        let is_it = |memory: &Memory| memory.bytes() == bytes.next_multiple_of(size_of::<u64>());
        let reusable = self.memory.take().filter(is_it);
        let memory = &*self
            .memory
            .insert(reusable.unwrap_or_else(|| Memory::new(bytes)));
        let threads = self.device.threads();
        (0..times).map(|_| memory.read_seconds(threads)).sum()
    }

    fn run(&mut self, name: &str, steps: usize) -> Result<Value> {
        let batch = self
            .batches
            .get_mut(name)
            .ok_or_else(|| format!("batch `{name}` is not open"))?;
        self.device.forget_peak()?;
        let before = (self.device.allocated()?, self.model.memory());
        let (seconds, tokens) = batch.run(&mut self.model, steps)?;
        let after = (self.device.allocated()?, self.model.memory());
        let beside = |(allocated, all): (Allocated, DeviceMemory)| {
            all.active_bytes.saturating_sub(allocated.active_bytes)
        };
        let scratch_bytes = after.0.peak_bytes.saturating_sub(before.0.active_bytes)
            + beside(after).saturating_sub(beside(before));
        Ok(json!({ "seconds": seconds, "tokens": tokens, "scratch_bytes": scratch_bytes }))
    }
}
