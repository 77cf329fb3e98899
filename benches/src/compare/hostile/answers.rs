//! Memory use under requests whose answers, or what they name, are far larger than they.

use std::time::Duration;

use anyhow::{Result, bail};
use xtask::ui;

use super::MEGABYTE;
use super::attack::{Attack, Tally};
use super::large_answers::{self, Kind, Sizes};
use super::victim::{Death, Victim, WatchOutcome};
use crate::measured::Measured;

/// Longest time for the server to come to rest after its first requests.
const REST_TIME_MAX: Duration = Duration::from_secs(10);

/// Growth of the server under one kind of requests.
struct Growth {
    name: &'static str,
    megabytes: f64,
    /// Whether the server was ended at that size.
    was_ended: bool,
    tally: Tally,
}

/// Megabytes by which the server grows, from its idle state, under each kind of requests and then
/// under all at once: the largest.
///
/// # Errors
///
/// When the server ends by itself. The error names all kinds of requests that caused it.
pub(super) fn measure(victim: &mut Victim, sizes: &Sizes) -> Result<Measured> {
    let (mut growths, mut deaths) = (Vec::new(), Vec::new());
    let mut task = ui::Task::start("requests for large answers");
    for (number, kind) in large_answers::KINDS.iter().enumerate() {
        if number > 0 {
            // An allocator may keep what one kind has taken.
            victim.restart()?;
        }
        let idle_bytes = warm_up(victim, sizes)?;
        task.progress(kind.name);
        match growth(victim, kind, sizes, idle_bytes) {
            Ok(growth) => {
                ui::note(&growth.line());
                growths.push(growth);
            }
            Err(error) if error.is::<Death>() => {
                ui::note(&format!("{}: {error:#}", kind.name));
                deaths.push(format!("{}: {error:#}", kind.name));
            }
            Err(error) => return Err(error.context(format!("at {}", kind.name))),
        }
    }
    task.done();
    if !deaths.is_empty() {
        bail!("requests end our server: {}", deaths.join("; "));
    }
    let largest = growths.iter().map(|growth| growth.megabytes);
    let measured = Measured::new(vec![largest.fold(0.0, f64::max)]);
    Ok(growths
        .iter()
        .map(Growth::line)
        .fold(measured, Measured::remark))
}

/// Sends the smallest request of each kind, so that the server has allocated what lasts. Returns
/// its resident bytes.
fn warm_up(victim: &mut Victim, sizes: &Sizes) -> Result<u64> {
    let smallest = Sizes::smallest(sizes);
    let warmed = growth(victim, large_answers::all(), &smallest, 0)?;
    if warmed.was_ended || !victim.comes_to_rest(REST_TIME_MAX)? {
        bail!("our server does not come to rest after the smallest requests");
    }
    victim.process().resident_bytes()
}

fn growth(victim: &mut Victim, kind: &Kind, sizes: &Sizes, idle_bytes: u64) -> Result<Growth> {
    victim.process().reset_peak()?;
    let shots = (kind.shots)(victim, sizes)?;
    let attack = Attack::start(victim.port(), shots.len(), shots, Duration::ZERO);
    let watch_outcome = victim.watch(|| attack.is_finished())?;
    let was_ended = watch_outcome == WatchOutcome::TooLarge;
    let peak_bytes = if was_ended {
        victim.resident_bytes_max()
    } else {
        victim.process().peak_bytes()?
    };
    Ok(Growth {
        name: kind.name,
        megabytes: peak_bytes.saturating_sub(idle_bytes) as f64 / MEGABYTE,
        was_ended,
        tally: attack.end(),
    })
}

impl Growth {
    fn line(&self) -> String {
        let ended = if self.was_ended { "over " } else { "" };
        format!(
            "{}: {ended}{:.0} MB; {}",
            self.name, self.megabytes, self.tally
        )
    }
}
