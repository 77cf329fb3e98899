//! Lines of code by place, and how far they may grow.
//!
//! Blank lines, comments and documentation are no code. Tests are counted apart from the product
//! that they check.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::source::{Source, Sources, is_test};

/// A place may grow by this share over [`LINES`] before its number must be raised.
const GROWTH_PERCENT: usize = 5;

/// Lines of code of each place, as of the last change of this table. The commit that raises a
/// number says why: a capability that is new, never the same thing twice.
#[rustfmt::skip] // a table
const LINES: &[(&str, usize)] = &[
    // Fleets simulated, and a store that machines share.
    ("benches", 15_250),
    // A worker of Dynamo with the engine in process.
    ("examples", 4_731),
    // Adapters in keys.
    ("fuzz", 1_190),
    ("loom_tests", 1_955),
    // Draft models, and hand-over: outputs that go on after a beginning.
    ("motet", 11_440),
    // A tier that processes share: asked before a lookup, and sent to. Typed keys of prefixes.
    ("motet-core", 19_500),
    ("motet-device", 1_550),
    ("motet-find", 2_106),
    ("motet-formats", 2_456),
    ("motet-kernels", 7_003),
    ("motet-mlx", 9_187),
    ("motet-mlx-setup", 1),
    ("motet-model", 4_920),
    // Typed keys of prefixes.
    ("motet-protocol", 2_700),
    // That tier in a store.
    ("motet-remote", 900),
    // Journals of responses in the background, with which a restart goes on.
    ("motet-server", 17_650),
    ("motet-storage", 1_730),
    ("motet-sync", 1_421),
    // The remote tier on paper, and in memory.
    ("motet-testkit", 2_380),
    ("motet-text", 16_236),
    ("motet-weights", 6_895),
    // Fleets with a shared tier, and restarts of responses in the background.
    ("tests", 32_800),
    // Followers of blocks, held to what each tier has.
    ("tests of crates", 20_500),
    ("unit tests", 30_800),
    ("xtask", 7_028),
];

const UNIT_TESTS: &str = "unit tests";

/// The lines of each place: a crate of the product, or code that checks, measures or shows.
pub(super) fn counted(sources: &Sources) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for source in &sources.0 {
        let (code, tests) = lines(source);
        *counted.entry(place(source)).or_insert(0) += code;
        *counted.entry(UNIT_TESTS.to_owned()).or_insert(0) += tests;
    }
    counted
}

/// Places that have grown beyond their number, or that have none.
pub(super) fn grown(sources: &Sources) -> Vec<String> {
    let mut grown = Vec::new();
    for (place, lines) in counted(sources) {
        let known = LINES.iter().find(|(name, _)| *name == place);
        let Some((_, before)) = known else {
            grown.push(format!(
                "{place}: {lines} lines, and no number in the table"
            ));
            continue;
        };
        if lines * 100 > before * (100 + GROWTH_PERCENT) {
            grown.push(format!("{place}: {lines} lines, {before} before"));
        }
    }
    grown
}

pub(super) fn table(sources: &Sources) -> String {
    let counted = counted(sources);
    let is_product = |place: &str| place.starts_with("motet") && place != "motet-testkit";
    let mut table = String::from("| place | lines of code |\n|---|--:|\n");
    for (place, lines) in &counted {
        table += &format!("| {place} | {lines} |\n");
    }
    let sum = |product: bool| -> usize {
        let chosen = counted
            .iter()
            .filter(|(place, _)| is_product(place) == product);
        chosen.map(|(_, lines)| lines).sum()
    };
    table += &format!("| **product** | **{}** |\n", sum(true));
    table += &format!("| **checking and measuring** | **{}** |\n", sum(false));
    table
}

/// The crate, or the folder, that a file counts for.
fn place(source: &Source) -> String {
    if let Some((package, _)) = source.within_crate().filter(|_| source.is_library) {
        return package;
    }
    let place = match source.path.split('/').collect::<Vec<_>>().as_slice() {
        ["src", ..] | ["crates", _, "src", ..] => UNIT_TESTS,
        ["crates", ..] => "tests of crates",
        [folder, ..] => folder,
        [] => "",
    };
    place.to_owned()
}

/// Lines of code outside tests and within them.
fn lines(source: &Source) -> (usize, usize) {
    let mut tests = TestLines::default();
    tests.visit_file(&source.parsed);
    let in_test = |line: usize| {
        tests
            .0
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&line))
    };
    let code = source.text.lines().zip(1..).filter(|(line, _)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//")
    });
    let (within, outside): (Vec<_>, Vec<_>) = code.partition(|(_, number)| in_test(*number));
    (outside.len(), within.len())
}

/// First and last lines of modules that are compiled for tests only.
#[derive(Default)]
struct TestLines(Vec<(usize, usize)>);

impl<'ast> Visit<'ast> for TestLines {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            let span = item.span();
            self.0.push((span.start().line, span.end().line));
            return;
        }
        visit::visit_item_mod(self, item);
    }
}
