//! A family through the engine, in every way that a sequence's state can go: alone, in a batch,
//! from the cache, after a fork, after preemption, after offload to host memory and to disk, after a
//! beginning of its output, and after a lost device. The model is deterministic, so all ways give the
//! tokens of the first, which has no drafts. The others draft their outputs, with mistakes.

use std::path::Path;
use std::time::Duration;

use motet::config::{DiskConfig, EngineConfig};
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions, RetainedWeights};
use motet::model::weights::ModelFiles;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::request::Completion;
use motet::{Engine, EngineBuilder, Request, Shutdown, TokenId};

use crate::common::until;
use crate::fixture::families;
use crate::folder::open_family;
use crate::harness::one_at_a_time;
use crate::killable::{Kill, Killable};
use motet_testkit::folder::Folder;

/// Token ids of all fixtures are below this.
const VOCAB: u32 = 96;
const PROMPTS: usize = 4;
const OUTPUT: usize = 24;
const CONTEXT: usize = 256;
/// Tokens of a beginning after which an output goes on.
const SO_FAR: usize = 5;
/// The family of a draft model for models that cannot draft their own outputs.
const DRAFT_FAMILY: &str = "llama";
/// By how much a step takes longer, where drafts are to pay: a large model has such steps.
const STEP_MICROS: u64 = 3_000;

/// Draft tokens of one family, or of all.
#[derive(Debug, Default)]
pub(crate) struct Drafted {
    /// Predicted tokens that were verified, and wrong.
    wrong: u64,
    /// Tokens of a draft model that were right.
    by_a_model: u64,
}

/// A model of one family, and what its sequences generate alone.
pub(crate) struct Family {
    files: ModelFiles,
    prompts: Vec<Vec<TokenId>>,
    alone: Vec<Vec<TokenId>>,
}

/// Tokens of prompt number `number`. The first half of each is the same.
fn prompt(number: usize) -> Vec<TokenId> {
    let token = |seed: u64, at: u64| {
        let mixed = (seed * 1000 + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ (mixed >> 29)) >> 20) as u32 % (VOCAB - 2) + 2
    };
    let shared = (0..40).map(|at| token(0, at));
    let own = (0..80 + 3 * number as u64).map(|at| token(number as u64 + 1, at));
    shared.chain(own).collect()
}

fn options() -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        deterministic: true,
        ..MlxOptions::default()
    }
}

fn request(prompt: &[TokenId]) -> Request {
    Request::tokens(prompt)
        .output_tokens_max(OUTPUT)
        .ignore_end_tokens()
}

/// A request whose prompt comes again.
fn repeated(prompt: &[TokenId]) -> Request {
    request(prompt).turn_end(prompt.len() - 1)
}

/// A prediction of this output with mistakes.
fn mistaken(output: &[TokenId]) -> Vec<TokenId> {
    let token = |(index, token): (usize, &TokenId)| match index % 6 {
        5 => token ^ 1,
        _ => *token,
    };
    output.iter().enumerate().map(token).collect()
}

impl Family {
    /// Opens the family's files, and runs each prompt alone, without the cache.
    pub(crate) async fn new(files: &Path) -> Self {
        let mut family = Self {
            files: ModelFiles::open(files).expect("the family opens"),
            prompts: (0..PROMPTS).map(prompt).collect(),
            alone: Vec::new(),
        };
        let engine = family.engine(family.config(1, CONTEXT)).await;
        for prompt in &family.prompts {
            let request = request(prompt).without_cache().speculation(false);
            let output = run(&engine, request).await;
            assert_eq!(output.finish.usage.cached_tokens, 0);
            family.alone.push(output.tokens);
        }
        end(engine).await;
        family
    }

    fn spec(&self) -> ModelSpec {
        MlxModel::outline(&self.files, &options()).expect("a CPU")
    }

    /// A device for so many sequences, and state of so many tokens beside their own recurrent
    /// state.
    fn config(&self, sequences_max: usize, device_tokens: usize) -> EngineConfig {
        let mut config = EngineConfig {
            context_tokens_max: Some(CONTEXT),
            ..EngineConfig::default()
        };
        config.scheduler.sequences_max = sequences_max;
        config.scheduler.chunking.step_tokens_max = 32;
        let spec = self.spec();
        let states = spec.tail_bytes(0) * (2 * sequences_max + PROMPTS);
        config.cache.device_bytes_max =
            states + spec.tail_bytes(device_tokens) + config.scratch_bytes(&spec);
        config
    }

    async fn engine(&self, config: EngineConfig) -> Engine {
        self.killable(config, Kill::default()).await
    }

    async fn killable(&self, config: EngineConfig, kill: Kill) -> Engine {
        let started = self.builder(config, kill).start().await;
        started.expect("the engine starts")
    }

    fn builder(&self, config: EngineConfig, kill: Kill) -> EngineBuilder {
        let files = ModelFiles::open(self.files.path()).expect("the files were opened before");
        let retained = RetainedWeights::default();
        let load = move || {
            let model = MlxModel::load_reusing(&files, options(), &retained)?;
            let kill = kill.clone();
            Ok(Killable { model, kill })
        };
        Engine::builder(load).config(config)
    }

    /// Runs all prompts at once, and compares their outputs with those alone.
    pub(crate) async fn run_all(&self, engine: &Engine, way: &str) {
        let mut streams = Vec::new();
        for (prompt, alone) in self.prompts.iter().zip(&self.alone) {
            let request = repeated(prompt).prediction_tokens(mistaken(alone));
            let stream = engine.submit(request).await;
            streams.push(stream.expect("the request is admitted"));
        }
        for (stream, alone) in streams.into_iter().zip(&self.alone) {
            let output = stream.collect().await.expect("the sequence finishes");
            assert_eq!(&output.tokens, alone, "{way}");
        }
    }

    /// All at once, then again from the cache.
    async fn batched_and_cached(&self) {
        let engine = self.engine(self.config(PROMPTS, PROMPTS * CONTEXT)).await;
        self.run_all(&engine, "batched").await;
        assert!(engine.stats().steps_by_sequences.len() > 1, "in one batch");
        for (prompt, alone) in self.prompts.iter().zip(&self.alone) {
            let output = run(&engine, request(prompt)).await;
            assert_eq!(&output.tokens, alone, "from the cache");
            let cached = output.finish.usage.cached_tokens;
            assert!(cached >= prompt.len() / 2, "{cached} tokens from the cache");
        }
        // The next turn of a chat continues at the end of the last one.
        let (prompt, alone) = (&self.prompts[0], &self.alone[0]);
        let turn = [&prompt[..], alone, &prompt[..5]].concat();
        let cached = run(&engine, request(&turn)).await;
        let computed = run(&engine, request(&turn).without_cache()).await;
        assert_eq!(cached.tokens, computed.tokens, "the next turn");
        let reused = cached.finish.usage.cached_tokens;
        assert!(
            reused + 2 >= prompt.len() + OUTPUT,
            "{reused} tokens reused"
        );
        end(engine).await;
    }

    /// Right, mistaken and random predictions and none, of greedy and of random outputs, cold and
    /// from the cache. Returns the number of draft tokens that were wrong.
    async fn drafted(&self) -> u64 {
        // Rows cost little beside steps, so that drafts with mistakes are verified too.
        let kill = Kill::default();
        kill.slow_down_steps(STEP_MICROS / 6);
        let engine = self.killable(self.config(2, 8 * CONTEXT), kill).await;
        let warm = |request: Request| request.temperature(0.9).seed(7);
        let penalized = |mut request: Request| {
            request.sampling.repetition_penalty = 1.3;
            request
        };
        let kinds: [&dyn Fn(Request) -> Request; 3] = [&|request| request, &warm, &penalized];
        for (number, kind) in kinds.iter().enumerate() {
            let prompt = &self.prompts[number];
            let plain = kind(request(prompt));
            let off = plain.clone().without_cache().speculation(false);
            let expected = run(&engine, off).await.tokens;
            let other = self.alone[PROMPTS - 1].clone();
            for prediction in [expected.clone(), mistaken(&expected), other, Vec::new()] {
                let request = plain.clone().prediction_tokens(prediction);
                let cached = request.clone().cache_salt(format!("kind {number}"));
                for request in [request.without_cache(), cached] {
                    let output = run(&engine, request).await;
                    assert_eq!(output.tokens, expected, "kind {number}");
                }
            }
        }
        let drafts = engine.stats().drafts;
        assert!(drafts.accepted_tokens > 0, "{drafts:?}");
        end(engine).await;
        drafts.draft_tokens - drafts.accepted_tokens
    }

    /// By a draft model: the model itself, whose steps take longer here, or a model of another family
    /// where its layers are not all of full attention.
    /// Returns the number of its tokens that were accepted.
    async fn drafted_by_a_model(&self) -> u64 {
        let groups = self.spec().layer_groups;
        let is_own = groups.iter().all(|group| group.kind == LayerKind::Full);
        let other = open_family(DRAFT_FAMILY);
        let path = if is_own {
            self.files.path()
        } else {
            other.path()
        };
        let draft_files = ModelFiles::open(path).expect("the family opens");
        let kill = Kill::default();
        kill.slow_down_steps(STEP_MICROS);
        let builder = self.builder(self.config(PROMPTS, PROMPTS * CONTEXT), kill);
        let builder = builder.draft_model(move || MlxModel::load(&draft_files, options()));
        let engine = builder.start().await.expect("the engine starts");
        let plain = self.engine(self.config(1, CONTEXT)).await;
        for temperature in [0.0, 0.9] {
            let mut outputs = Vec::new();
            for prompt in &self.prompts {
                let request = request(prompt).temperature(temperature).seed(3);
                let stream = engine.submit(request.clone()).await;
                let expected = run(&plain, request.without_cache().speculation(false)).await;
                outputs.push((stream.expect("the request is admitted"), expected.tokens));
            }
            for (stream, expected) in outputs {
                let output = stream.collect().await.expect("the sequence finishes");
                assert_eq!(output.tokens, expected, "a draft model");
            }
        }
        let accepted = engine.stats().drafts.accepted_tokens;
        end(engine).await;
        end(plain).await;
        accepted
    }

    /// A fork in the middle of the output.
    async fn forked(&self) {
        let mut config = self.config(4, 4 * CONTEXT);
        config.scheduler.unread_tokens_max = 8; // the source pauses before its end
        let engine = self.engine(config).await;
        let (prompt, alone) = (&self.prompts[1], &self.alone[1]);
        let source = engine.submit(request(prompt)).await;
        let source = source.expect("the request is admitted");
        let more = Request::tokens([7, 8])
            .output_tokens_max(6)
            .ignore_end_tokens();
        let fork = engine.fork(&source, None, more).await;
        let fork = fork.expect("the fork is admitted");
        let fork = fork.collect().await.expect("the sequence finishes");
        let begin = fork.finish.usage.prompt_tokens - 2;
        let source = source.collect().await.expect("the sequence finishes");
        assert_eq!(&source.tokens, alone, "the fork's source");
        let history = [&prompt[..], alone].concat();
        let continued = [&history[..begin], &[7, 8]].concat();
        let computed = request(&continued).output_tokens_max(6).without_cache();
        let computed = run(&engine, computed).await;
        assert_eq!(fork.tokens, computed.tokens, "the fork");
        end(engine).await;
    }

    /// Too little memory for all sequences.
    async fn preempted(&self) {
        let mut config = self.config(PROMPTS, 2 * CONTEXT);
        let spec = self.spec();
        // The state of three sequences' prompts, but not of their outputs.
        let tokens = 3 * (self.prompts[0].len() + 8);
        config.cache.device_bytes_max =
            spec.tail_bytes(0) * 4 + spec.tail_bytes(tokens) + config.scratch_bytes(&spec);
        let engine = self.engine(config).await;
        self.run_all(&engine, "short of memory").await;
        end(engine).await;
    }

    /// From host memory, then after a restart from the disk.
    async fn offloaded(&self) {
        let folder = Folder::new("parity");
        let engine = self.with_disk(&folder).await;
        self.run_all(&engine, "with a pager").await;
        until("all state is copied", || {
            engine.stats().pager.copies >= PROMPTS
        })
        .await;
        // Others take the device's memory meanwhile.
        for number in 10..24 {
            run(&engine, request(&prompt(number)[40..])).await;
        }
        self.run_all(&engine, "from host memory").await;
        let stats = engine.stats();
        assert!(
            stats.pager.unpacked > 0,
            "{:?}, {:?}",
            stats.pager,
            stats.cache
        );
        engine.shutdown(Shutdown::Finish).await;

        let engine = self.with_disk(&folder).await;
        self.run_all(&engine, "from the disk").await;
        let pager = engine.stats().pager;
        assert!(pager.read > 0 && pager.failed == 0, "{pager:?}");
        end(engine).await;
    }

    /// An engine that keeps state in host memory and in this folder, with a device for one
    /// sequence. Computing takes long, so that it loads rather than computes.
    pub(crate) async fn with_disk(&self, folder: &Folder) -> Engine {
        let mut config = self.config(1, CONTEXT);
        let spec = self.spec();
        // A sequence, and a copy that is needed in part: that takes three times its bytes.
        let copy = spec.segment_bytes(SegmentSize::whole(160));
        config.cache.full_sequences_min = 0;
        config.cache.device_bytes_max =
            spec.tail_bytes(192) + 8 * spec.tail_bytes(0) + 3 * copy + config.scratch_bytes(&spec);
        config.pager.host_bytes_max = 64 << 20;
        config.pager.clean_part = 1.0;
        config.pager.flush_time = Duration::from_secs(60);
        config.pager.disk_timeout = Duration::from_secs(60);
        config.pager.disk = Some(DiskConfig {
            folder: folder.0.clone(),
            bytes_max: 256 << 20,
        });
        let slow = Kill::default();
        slow.slow_down(1000);
        self.killable(config, slow).await
    }

    /// The device's thread ends while all sequences run. Half of them go on after a beginning of
    /// their outputs.
    async fn recovered(&self) {
        let kill = Kill::default();
        let config = self.config(PROMPTS, PROMPTS * CONTEXT);
        let engine = self.killable(config, kill.clone()).await;
        let mut streams = Vec::new();
        for (number, (prompt, alone)) in self.prompts.iter().zip(&self.alone).enumerate() {
            let so_far = &alone[..number % 2 * SO_FAR];
            let request = request(prompt).prediction_tokens(mistaken(alone));
            let stream = engine.submit(request.output_so_far(so_far)).await;
            streams.push((so_far, stream.expect("the request is admitted")));
        }
        until("tokens are generated", || engine.stats().output_tokens >= 8).await;
        kill.arm();
        for ((so_far, stream), alone) in streams.into_iter().zip(&self.alone) {
            let output = stream.collect().await.expect("the sequence finishes");
            let whole = [so_far, &output.tokens].concat();
            assert_eq!(&whole, alone, "after a lost device");
        }
        assert!(engine.stats().rebuilds > 0, "the device was lost");
        end(engine).await;
    }
}

async fn run(engine: &Engine, request: Request) -> Completion {
    let stream = engine.submit(request).await;
    let stream = stream.expect("the request is admitted");
    stream.collect().await.expect("the sequence finishes")
}

/// Shuts the engine down, and checks that nothing is in use.
pub(crate) async fn end(engine: Engine) {
    engine.drain().await;
    until("all slots are closed", || {
        let stats = engine.stats();
        stats.running == 0 && stats.cache.reserved_bytes == 0
    })
    .await;
    engine.shutdown(Shutdown::Abort).await;
}

/// Checks the model in these files in all ways.
pub(crate) fn generates_the_same_in_every_way(files: &Path) -> Drafted {
    in_runtime(async {
        let family = Family::new(files).await;
        family.batched_and_cached().await;
        let drafted = Drafted {
            wrong: family.drafted().await,
            by_a_model: family.drafted_by_a_model().await,
        };
        family.forked().await;
        family.preempted().await;
        family.offloaded().await;
        family.recovered().await;
        drafted
    })
}

pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Folders only: a GGUF file becomes the same blueprint and tensors. The table of docs/models.md
/// checks both. `MOTET_FAMILY` names a single family.
#[test]
fn every_family_generates_the_same_in_every_way() {
    let _serial = one_at_a_time();
    let only = std::env::var("MOTET_FAMILY").ok();
    let mut drafted = Drafted::default();
    for name in families() {
        let is_left_out = only.as_ref().is_some_and(|only| *only != name);
        if is_left_out {
            continue;
        }
        println!("{name}");
        let family = generates_the_same_in_every_way(open_family(&name).path());
        drafted.wrong += family.wrong;
        drafted.by_a_model += family.by_a_model;
    }
    // How many of one family are verified depends on the time that its steps take.
    let enough = drafted.wrong > 0 && drafted.by_a_model > OUTPUT as u64;
    assert!(enough || only.is_some(), "{drafted:?}");
}
