//! Memory use under many request bodies at once.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xtask::ui;

use super::attack::{Attack, Tally};
use super::victim::{Victim, WatchOutcome};
use super::{MEGABYTE, payloads};
use crate::measured::{Measured, median};

/// Length of short bodies of the same requests. The server grows under them by the model's own
/// work only.
const SHORT_BYTES: usize = 512;
const REST_TIME_MAX: Duration = Duration::from_secs(30);

/// Megabytes by which the server grows while `count` clients send a body of `bytes` bytes each,
/// all at once.
///
/// Each round has a server of its own. The clients first send it short bodies twice, so that it
/// has already allocated the model's lasting memory. The growth under the second short bodies is
/// reported as a remark: it is the model's recurring memory.
pub(super) fn measure(
    victim: &mut Victim,
    rounds: usize,
    count: usize,
    bytes: usize,
) -> Result<Measured> {
    let (mut samples, mut short, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tally, mut ended) = (Tally::default(), 0);
    for round in 0..rounds {
        if round > 0 {
            victim.restart()?;
        }
        let label = format!("bodies, round {} of {rounds}", round + 1);
        let mut task = ui::Task::start(label);
        let mut short_grown = 0.0;
        for _ in 0..2 {
            let before = grown(victim, count, SHORT_BYTES, &mut task)?;
            if before.was_ended || !victim.comes_to_rest(REST_TIME_MAX)? {
                bail!("our server does not come to rest after short bodies");
            }
            short_grown = before.megabytes;
        }
        let under = grown(victim, count, bytes, &mut task)?;
        task.done();
        ui::note(&format!(
            "grown by {:.0} MB, and by {short_grown:.0} MB under short ones",
            under.megabytes
        ));
        samples.push(under.megabytes);
        short.push(short_grown);
        seconds.push(under.seconds);
        tally.add(&under.tally);
        ended += usize::from(under.was_ended);
    }
    let measured = Measured::new(samples)
        .remark(format!(
            "bodies of {bytes} bytes, finished in {:.1} s; the same requests with bodies of {SHORT_BYTES} bytes \
             before: {:.0} MB",
            median(&seconds),
            median(&short)
        ))
        .remark(format!("outcomes: {tally}"));
    Ok(match ended {
        0 => measured,
        _ => measured.remark(format!(
            "{ended} of {rounds} servers were ended at that size: they would have grown further"
        )),
    })
}

struct Grown {
    megabytes: f64,
    seconds: f64,
    tally: Tally,
    was_ended: bool,
}

fn grown(victim: &mut Victim, count: usize, bytes: usize, task: &mut ui::Task) -> Result<Grown> {
    let shots = payloads::zero_shots(count, bytes);
    victim.process().reset_peak()?;
    let before = victim.process().resident_bytes()?;
    let started_at = Instant::now();
    let attack = Attack::start(victim.port(), count, shots, Duration::ZERO);
    let watch_outcome = victim.watch(|| {
        task.progress(&attack.progress());
        attack.is_finished()
    })?;
    let peak = match watch_outcome {
        WatchOutcome::Well => victim.process().peak_bytes()?,
        WatchOutcome::TooLarge => victim.resident_bytes_max(),
    };
    let seconds = started_at.elapsed().as_secs_f64();
    Ok(Grown {
        megabytes: peak.saturating_sub(before) as f64 / MEGABYTE,
        seconds,
        tally: attack.end(),
        was_ended: watch_outcome == WatchOutcome::TooLarge,
    })
}
