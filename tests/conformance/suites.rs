//! Runs the cases of a file, each by its suite's rule, whatever its name is.
//!
//! A suite's cases may have several shapes, which their fields distinguish. Names matter for
//! [`Difference`]s only.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;

use crate::cases::{self, Case, Fact, Suite};
use crate::check::{Check, Difference, Outcome, Unsupported};
use crate::differences::{DIFFERENCES, UNSUPPORTED};
use crate::{ENVIRONMENT_VARIABLE, KNOWN, OTHERS, OWN};

/// Runs a case with Motet. Panics if Motet's results differ.
pub(crate) type Run = fn(&mut Check, &Fact<'_>);

/// The fields that identify a case of this shape, and the function that runs it. `expect.error`
/// is a field of the field `expect`.
pub(crate) type Shape = (&'static [&'static str], Run);

/// A known suite.
pub(crate) struct Known {
    pub(crate) suite: &'static str,
    /// Number of its cases in our own file.
    pub(crate) own_cases: usize,
    /// Fields, at any depth, that stand beside a case and make no difference.
    pub(crate) beside: &'static [&'static str],
    /// A case is run as the first shape whose fields it has.
    pub(crate) shapes: &'static [Shape],
}

/// Number of cases of a suite, by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) agree: usize,
    pub(crate) differ: usize,
    pub(crate) unsupported: usize,
}

/// Outcomes of all cases.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: Vec<(String, Counts)>,
    pub(crate) complaints: Vec<String>,
}

/// The suites of the file that the environment names, or else of our own files.
pub(crate) fn all() -> Vec<Suite> {
    match std::env::var_os(ENVIRONMENT_VARIABLE) {
        Some(path) => cases::read(&PathBuf::from(path)),
        None => ours(),
    }
}

/// The suites of our own files: the cases of ollama's tests, and other cases.
pub(crate) fn ours() -> Vec<Suite> {
    let files = [OWN, OTHERS];
    files
        .iter()
        .flat_map(|path| cases::read(path.as_ref()))
        .collect()
}

pub(crate) fn known(suite: &str) -> Option<&'static Known> {
    let all = KNOWN.iter().copied().flatten();
    all.into_iter().find(|known| known.suite == suite)
}

pub(crate) fn difference(suite: &str, case: &str) -> Option<&'static Difference> {
    let listed = |listed: &&Difference| listed.suite == suite && listed.case == case;
    DIFFERENCES.iter().find(listed)
}

pub(crate) fn run(suites: &[Suite]) -> Report {
    let mut report = Report::default();
    for suite in suites {
        if known(&suite.name).is_none() {
            let complaint = format!("{}: the suite is unknown", suite.name);
            report.complaints.push(complaint);
            continue;
        }
        let mut counts = Counts::default();
        for case in &suite.cases {
            match run_case(suite, case) {
                Ok(Outcome::Agrees) => counts.agree += 1,
                Ok(Outcome::Differs) => counts.differ += 1,
                Ok(Outcome::Unsupported) => counts.unsupported += 1,
                Err(why) => {
                    let complaint = format!("{}, {}: {why}", suite.name, case.name);
                    report.complaints.push(complaint);
                }
            }
        }
        report.count(&suite.name, &counts);
    }
    report
}

/// Returns the outcome of a case, or its error.
pub(crate) fn run_case(suite: &Suite, case: &Case) -> Result<Outcome, String> {
    let known = known(&suite.name).expect("the suite is known");
    let unsupported = UNSUPPORTED.iter();
    let unsupported: Vec<&Unsupported> = unsupported
        .filter(|unsupported| unsupported.suite == suite.name)
        .collect();
    caught(|| {
        let fact = Fact::new(&case.facts, "");
        let mut check = Check::new(difference(&suite.name, &case.name), unsupported);
        let run = known.shape_of(&fact);
        run(&mut check, &fact);
        let outcome = check.finish();
        if outcome != Outcome::Unsupported
            && let Some(field) = fact.unseen(known.beside)
        {
            panic!("the field `{field}` is unknown");
        }
        outcome
    })
}

impl Known {
    fn shape_of(&self, case: &Fact<'_>) -> Run {
        let mut shapes = self.shapes.iter();
        let shape = shapes.find(|(fields, _)| fields.iter().all(|field| case.has(field)));
        let Some((_, run)) = shape else {
            let shapes: Vec<_> = self.shapes.iter().map(|(fields, _)| fields).collect();
            panic!(
                "its fields {:?} match no known shape; expected all fields of one of {shapes:?}",
                case.names()
            );
        };
        *run
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.agree += other.agree;
        self.differ += other.differ;
        self.unsupported += other.unsupported;
    }
}

impl Report {
    /// Adds counts to a suite, which may stand in several files.
    fn count(&mut self, suite: &str, counts: &Counts) {
        let mut known = self.counts.iter_mut();
        match known.find(|(name, _)| name == suite) {
            Some((_, of_suite)) => of_suite.add(counts),
            None => {
                let mut of_suite = Counts::default();
                of_suite.add(counts);
                self.counts.push((suite.to_owned(), of_suite));
            }
        }
    }

    /// Prints how many cases agree, differ and are unsupported, with the reasons.
    pub(crate) fn print(&self) {
        let mut total = Counts::default();
        let line = |name: &str, counts: &Counts| {
            let Counts {
                agree,
                differ,
                unsupported,
            } = counts;
            println!("{name:40} {agree:5}  {differ:6}  {unsupported:11}");
        };
        println!("{:40} agree  differ  unsupported", "suite");
        for (suite, counts) in &self.counts {
            line(suite, counts);
            total.add(counts);
        }
        line("total", &total);
        for difference in DIFFERENCES {
            println!("{difference}");
        }
        for unsupported in UNSUPPORTED {
            println!("{unsupported}");
        }
    }
}

thread_local! {
    /// Location and message of this thread's last panic, while it catches panics.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the result of `act`, or the location and message of its panic, which is not printed.
pub(crate) fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_caught = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(caught) => {
                    *caught = info.to_string();
                    true
                }
                None => false,
            });
            if !is_caught {
                loud(info);
            }
        }));
    });
    let outer = CAUGHT.replace(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(act));
    let inner = CAUGHT.replace(outer);
    done.map_err(|_| inner.unwrap_or_default())
}

/// Whether `act` ends without a panic.
pub(crate) fn holds(act: impl FnOnce()) -> bool {
    caught(act).is_ok()
}
