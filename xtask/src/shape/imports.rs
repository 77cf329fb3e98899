//! Which modules use which: imports against the layers, and circles.
//!
//! At the top of a crate, a module is a file or folder of `src/`, and `lib.rs` is the highest of
//! them. It may use all others; none may use the items that it defines. An item that it only
//! re-exports counts for the module that defines it.
//!
//! In each folder below, its files and sub-folders must not use each other in a circle. The
//! folder's own `mod.rs` is left out: it is the folder. It declares the files, and it may define
//! the type that they extend by `impl`, or the names that all of them share, and use them all.
//! Where two files need each other's names, one of the names is in the wrong file.
//!
//! Modules of tests are left out everywhere.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Module, Use};

/// The crates and their modules from the bottom up: each uses those that stand before it.
#[rustfmt::skip] // a table
const LAYERS: &[(&str, &[&str])] = &[
    ("motet-sync", &["injected", "primitives", "cancel", "credits", "gate", "heartbeat", "page_pool", "parking", "lease", "admission"]),
    ("motet-protocol", &["time", "hash_step", "ids", "lease", "prefix", "token_mask", "grammar_limits", "grammar_error", "constraint", "spelling", "salt", "prefix_key", "spec", "prompt_output", "sampling", "span", "withheld", "error", "model_error", "miss", "reasoning", "request", "label", "suspicion", "edit", "draft_model", "work", "pager", "cache", "remote"]),
    ("motet-core", &["eviction", "drafts", "config", "recovery", "snapshot", "cache", "pager", "scheduler"]),
    ("motet-testkit", &["folder", "formula", "logits", "naive", "transfer_queue", "copy_machine", "paper_device", "pager_harness", "cache_harness", "core_harness", "explorer", "remote", "block_follower"]),
    ("motet-formats", &["simd", "wide_bytes", "block_format", "blocks", "k_quants", "codebooks", "format", "groups", "decoders", "encoded"]),
    ("motet-weights", &["limits", "python_json", "fields", "bus_error", "opened", "formats", "tensor", "affine", "stored", "blueprint", "role", "names", "mxfp4", "mlx", "located", "plan", "locate", "skipped", "fingerprint", "read_ahead", "watch", "gguf", "huggingface", "settings", "family"]),
    ("motet-find", &["error", "progress", "listing", "select", "name", "environment", "hub_cache", "hub", "ollama", "lm_studio"]),
    ("motet-model", &["packer", "cache_kind", "preconditions", "sampling", "model", "conformance", "oracle"]),
    ("motet-device", &["next_action", "transfer_queue", "table", "draft_model"]),
    ("motet-storage", &["tiers", "copy_worker"]),
    ("motet-remote", &["secret", "error", "seal", "names", "stored", "store", "find", "copies", "tier", "open"]),
    ("motet-kernels", &["cached_int8", "scratch", "split", "pool", "products", "weights", "norm", "attend", "sample", "gated", "linear", "int8", "gates", "spans", "short_conv", "delta_net", "mamba2", "gated_norm", "experts"]),
    ("motet-text", &["utf8", "error", "byte_level", "pre_tokenizer", "special", "stop", "pieces", "token_bytes_bound", "parts", "gguf", "folder", "tokenizer", "detokenizer", "schema", "grammar", "template", "turn_end", "answer", "codec", "output", "chat_prompt", "restore_points"]),
    ("motet-mlx", &["error", "device", "weights", "state", "layers", "step", "model"]),
    ("motet", &["runtime", "optional", "request", "device", "copy_workers", "error", "telemetry", "results", "actors", "handle", "stream", "engine", "chat", "open"]),
    ("motet-server", &["activity", "class", "error", "keys", "model_names", "site", "store_settings", "shown", "trace", "fleet_settings", "arguments", "addresses", "body", "app", "access", "kept", "log", "generate", "conversation", "pieces", "api", "anthropic", "openai", "responses", "fleet", "state", "tokens", "openapi", "page", "routes", "grpc", "recorder", "start", "socket", "departure", "connections", "welcome", "serve"]),
];

/// Modules that stand side by side: none of a row uses another one of it.
const APART: &[(&str, &[&str])] = &[("motet-server", &["openai", "responses", "anthropic"])];

/// The findings that are known and still allowed, by the words that they begin with. A test fails
/// where one of these is found no more, so that the list only gets shorter.
#[cfg(test)]
pub(super) const ALLOWED: &[&str] = &[];

/// A module at the top of a crate, with its package.
type Top = (String, String);

/// Every import that points to a module or crate which stands above or apart, and every module
/// without a place in [`LAYERS`].
pub(super) fn against_layers(uses: &[Use]) -> Vec<String> {
    let mut wrong = BTreeSet::new();
    for used in uses {
        let (from, to) = (top(&used.from), top(&used.to));
        if from == to {
            continue;
        }
        let (Some(from_layer), Some(to_layer)) = (layer(&from), layer(&to)) else {
            let unknown = if layer(&from).is_none() { &from } else { &to };
            wrong.insert(format!("{} {} stands in no layer", unknown.0, unknown.1));
            continue;
        };
        if to_layer > from_layer || are_apart(&from, &to) {
            wrong.insert(format!(
                "{} {} uses {} {}: {}",
                from.0, from.1, to.0, to.1, used.file
            ));
        }
    }
    wrong.into_iter().collect()
}

/// Modules of one folder that use each other, directly or through others.
pub(super) fn circles(uses: &[Use]) -> Vec<String> {
    let mut folders: BTreeMap<Module, Arrows> = BTreeMap::new();
    for used in uses {
        if let Some((folder, from, to)) = arrow(&used.from, &used.to) {
            let arrows = folders.entry(folder).or_default();
            arrows.entry(from).or_default().insert(to);
        }
    }
    let circles = folders.iter().flat_map(|(folder, arrows)| {
        let place = [std::slice::from_ref(&folder.package), &folder.path[..]].concat();
        let circles = circles_among(arrows).into_iter();
        circles.map(move |circle| format!("{}: {}", place.join("/"), circle.join(", ")))
    });
    circles.collect()
}

/// The modules that each module of a folder uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The folder in which one module uses another, and the folder's members that they belong to.
/// None where one of them is the folder itself, or where they belong to one member.
fn arrow(from: &Module, to: &Module) -> Option<(Module, String, String)> {
    if from.package != to.package {
        return None;
    }
    let pairs = from.path.iter().zip(&to.path);
    let shared = pairs.take_while(|(from, to)| from == to).count();
    let folder = Module {
        package: from.package.clone(),
        path: from.path[..shared].to_vec(),
    };
    if shared == 0 {
        return Some((folder, top(from).1, top(to).1));
    }
    let (from, to) = (from.path.get(shared)?, to.path.get(shared)?);
    Some((folder, from.clone(), to.clone()))
}

fn circles_among(arrows: &Arrows) -> BTreeSet<Vec<&str>> {
    let reached = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in arrows.get(module).into_iter().flatten() {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<_, _> = arrows.keys().map(|from| (from, reached(from))).collect();
    let circles = reach.iter().map(|(module, reached)| {
        let with = reach
            .iter()
            .filter(|(other, back)| reached.contains(**other) && back.contains(*module));
        with.map(|(other, _)| other.as_str()).collect::<Vec<_>>()
    });
    circles.filter(|circle| circle.len() > 1).collect()
}

/// The module at the top of its crate that a module belongs to.
fn top(module: &Module) -> Top {
    let name = module.path.first().map_or("lib", String::as_str);
    (module.package.clone(), name.to_owned())
}

/// The height of a module, lower ones first; modules of another crate compare by their crates.
fn layer((package, module): &Top) -> Option<(usize, usize)> {
    let height = LAYERS.iter().position(|(name, _)| name == package)?;
    let modules = LAYERS[height].1;
    if module == "lib" {
        return Some((height, modules.len()));
    }
    let at = modules.iter().position(|name| name == module)?;
    Some((height, at))
}

fn are_apart(from: &Top, to: &Top) -> bool {
    APART.iter().any(|(package, row)| {
        let is_in_row = |(of, module): &Top| of == package && row.contains(&module.as_str());
        is_in_row(from) && is_in_row(to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::modules;
    use crate::shape::source::Sources;

    /// The uses in library code of a crate in the table, with these files of `src/`.
    fn uses_in(files: &[(&str, &str)]) -> Vec<Use> {
        let files = files.iter();
        let files = files.map(|(file, text)| (format!("crates/model/src/{file}"), *text));
        modules::uses(&Sources::of(files))
    }

    fn check_circles(files: &[(&str, &str)], expected: &[&str]) {
        assert_eq!(circles(&uses_in(files)), expected, "{files:?}");
    }

    #[test]
    fn circles_within_a_folder_are_found_and_its_own_file_is_no_part_of_them() {
        check_circles(
            &[
                ("a/mod.rs", "mod x; mod y; pub struct A(x::X);"),
                ("a/x.rs", "use super::A; pub struct X;"),
                ("a/y.rs", "use super::x::X;"),
            ],
            &[],
        );
        check_circles(
            &[
                ("a/mod.rs", "mod x; mod y; use x::X;"),
                ("a/x.rs", "pub struct X; fn f() { crate::a::y::g() }"),
                ("a/y/mod.rs", "mod z; pub fn g() {}"),
                ("a/y/z.rs", "use super::super::X;"),
            ],
            &["motet-model/a: x, y"],
        );
    }

    #[test]
    fn root_of_a_crate_is_the_highest_module() {
        let files = [
            (
                "lib.rs",
                "mod packer; pub trait Model {} pub use packer::Packer;",
            ),
            ("packer.rs", "use super::Model; pub struct Packer;"),
            ("sampling.rs", "use crate::Packer;"),
        ];
        check_circles(&files, &["motet-model: lib, packer"]);
        let wrong = "motet-model packer uses motet-model lib: crates/model/src/packer.rs";
        assert_eq!(against_layers(&uses_in(&files)), [wrong]);
    }

    #[test]
    fn modules_of_tests_do_not_count() {
        check_circles(
            &[
                ("a/mod.rs", "mod x; #[cfg(test)] mod y; mod z;"),
                (
                    "a/x.rs",
                    "pub struct X; #[cfg(test)] mod tests { use super::super::z; }",
                ),
                ("a/y.rs", "use super::x::X; pub struct Y; use super::z::Z;"),
                (
                    "a/z.rs",
                    "pub struct Z; use super::x::X; pub(in super::super) struct V;",
                ),
            ],
            &[],
        );
    }
}
