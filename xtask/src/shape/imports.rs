//! Which modules use which: imports against the layers, and circles.
//!
//! A module here is a file or folder at the top of a crate's `src/`. Modules of tests and
//! `lib.rs`, which re-exports, are left out.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::source::{Source, Sources, is_test};

/// The crates and their modules from the bottom up: each uses those that stand before it.
#[rustfmt::skip] // a table
const LAYERS: &[(&str, &[&str])] = &[
    ("motet-sync", &["injected", "primitives", "cancel", "credits", "gate", "heartbeat", "page_pool", "parking", "lease", "admission"]),
    ("motet-protocol", &["random_cases", "time", "ids", "lease", "prefix", "spec", "prompt_output", "span", "sampling", "token_mask", "constraint", "grammar_limits", "grammar_error", "withheld", "error", "model_error", "miss", "spelling", "reasoning", "request", "label", "salt", "suspicion", "edit", "work", "pager", "cache"]),
    ("motet-core", &["random_cases", "eviction", "config", "recovery", "snapshot", "cache", "pager", "scheduler"]),
    ("motet-testkit", &["transfer_queue", "copy_machine", "paper_device", "pager_harness", "cache_harness", "core_harness", "explorer"]),
    ("motet-weights", &["limits", "python_json", "fields", "bus_error", "opened", "formats", "tensor", "affine", "stored", "blueprint", "role", "names", "mxfp4", "mlx", "located", "plan", "locate", "skipped", "fingerprint", "read_ahead", "watch", "gguf", "huggingface", "settings", "family"]),
    ("motet-find", &["progress", "error", "listing", "select", "name", "environment", "hub_cache", "hub", "ollama", "lm_studio"]),
    ("motet-model", &["packer", "preconditions", "sampling", "span", "conformance", "oracle"]),
    ("motet-kernels", &["simd", "scratch", "split", "pool", "products", "weights", "norm", "attend", "sample", "gated", "linear", "int8", "gates", "spans", "short_conv", "delta_net", "mamba2", "gated_norm", "experts"]),
    ("motet-text", &["utf8", "error", "byte_level", "pre_tokenizer", "special", "stop", "pieces", "token_bytes_bound", "parts", "gguf", "folder", "tokenizer", "detokenizer", "output", "grammar", "template", "turn_end", "answer", "codec", "chat_prompt", "restore_points"]),
    ("motet-mlx", &["error", "machine", "pool", "activations", "groups", "options", "bridge", "stored_matrix", "kernel_ops", "ops", "state", "rotary", "sample", "prompt_logprobs", "segment", "batch", "kv_block", "in_flight", "tail", "detached_state", "attention", "weights", "blocks", "layers", "retained", "determinism", "decoder", "identity", "removal", "forward", "model", "state_tests", "checkpoint_tests"]),
    ("motet", &["runtime", "optional", "request", "device", "storage", "error", "telemetry", "results", "actors", "handle", "stream", "engine", "chat", "open"]),
    ("motet-server", &["activity", "class", "error", "keys", "model_names", "site", "store_settings", "shown", "trace", "arguments", "addresses", "body", "app", "access", "kept", "log", "generate", "conversation", "pieces", "api", "anthropic", "openai", "responses", "fleet", "state", "tokens", "openapi", "page", "routes", "recorder", "start", "socket", "departure", "connections", "welcome", "serve"]),
];

/// A use of one module by another, each with its package.
type Use = ((String, String), (String, String));

/// Every import that points to a module or crate which stands above, and every module without
/// a place in [`LAYERS`].
pub(super) fn against_layers(sources: &Sources) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, (from, to)) in uses(sources) {
        let (Some(from_layer), Some(to_layer)) = (layer(&from), layer(&to)) else {
            let unknown = if layer(&from).is_none() { &from } else { &to };
            wrong.push(format!(
                "{place}: {} {} stands in no layer",
                unknown.0, unknown.1
            ));
            continue;
        };
        if to_layer > from_layer {
            wrong.push(format!(
                "{place}: {} {} uses {} {}",
                from.0, from.1, to.0, to.1
            ));
        }
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// Modules of one crate that use each other, directly or through others.
pub(super) fn circles(sources: &Sources) -> Vec<String> {
    let mut arrows: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (_, (from, to)) in uses(sources) {
        if from.0 == to.0 {
            arrows.entry(from).or_default().insert(to);
        }
    }
    let reached = |from: &(String, String)| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(module) = open.pop() {
            for next in arrows.get(&module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reach: BTreeMap<_, _> = arrows
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, reached) in &reach {
        let circle: Vec<&str> = reach
            .iter()
            .filter(|(other, back)| reached.contains(**other) && back.contains(*module))
            .map(|(other, _)| other.1.as_str())
            .collect();
        if circle.len() > 1 {
            circles.insert(format!("{}: {}", module.0, circle.join(", ")));
        }
    }
    circles.into_iter().collect()
}

/// The height of a module, lower ones first; modules of another crate compare by their crates.
fn layer((package, module): &(String, String)) -> Option<(usize, usize)> {
    let height = LAYERS.iter().position(|(name, _)| name == package)?;
    let at = LAYERS[height].1.iter().position(|name| name == module)?;
    Some((height, at))
}

/// Every use of another module, with the file that it stands in.
fn uses(sources: &Sources) -> Vec<(String, Use)> {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.library() {
        if let Some((package, module)) = home(source) {
            modules.entry(package).or_default().insert(module);
        }
    }
    let mut uses = Vec::new();
    for source in sources.library() {
        let Some((package, module)) = home(source) else {
            continue;
        };
        let mut paths = Paths {
            depth: depth(source),
            ..Paths::default()
        };
        paths.visit_file(&source.parsed);
        for path in paths.found {
            let target = match path.as_slice() {
                [first, second, ..] if first == "crate" => (package.clone(), second.clone()),
                [first, second, ..] if first.starts_with("motet") => {
                    (first.replace('_', "-"), second.clone())
                }
                _ => continue,
            };
            let is_module = |(package, module): &(String, String)| {
                modules
                    .get(package)
                    .is_some_and(|modules| modules.contains(module))
            };
            if is_module(&target) && target != (package.clone(), module.clone()) {
                let from = (package.clone(), module.clone());
                uses.push((source.path.clone(), (from, target)));
            }
        }
    }
    uses
}

/// The package and the module at the top of its `src/` that a file belongs to.
fn home(source: &Source) -> Option<(String, String)> {
    let (package, inside) = source.within_crate()?;
    let module = inside.split('/').next()?.trim_end_matches(".rs");
    (module != "lib" && module != "bin").then(|| (package, module.to_owned()))
}

/// How many modules a file's own module is below the crate's root.
fn depth(source: &Source) -> usize {
    let Some((_, inside)) = source.within_crate() else {
        return 0;
    };
    let parts = inside.split('/').count();
    parts - usize::from(inside.ends_with("/mod.rs"))
}

/// Paths that begin at a crate's root, `super` resolved.
#[derive(Default)]
struct Paths {
    depth: usize,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, mut path: Vec<String>) {
        let supers = path.iter().take_while(|part| *part == "super").count();
        if supers > 0 {
            if supers < self.depth {
                return; // stays within the module
            }
            path.splice(..supers, ["crate".to_owned()]);
        }
        self.found.push(path);
    }

    fn add_tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.add(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.add(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.add([prefix, &["*".to_owned()]].concat()),
            syn::UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.add_tree(prefix, tree));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.add_tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let parts = path.segments.iter().map(|part| part.ident.to_string());
            self.add(parts.collect());
        }
        visit::visit_path(self, path);
    }
}
