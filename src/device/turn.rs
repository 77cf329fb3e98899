//! What the device thread does next: a pure function, so that tests can ask it.

/// How far work under way has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its tokens are still to be drawn.
    Launched,
    /// It can land.
    Drawn,
}

/// What the device thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Wait for work and launch it.
    Receive,
    /// Wait for work until the oldest flight is ready. If work comes first, launch it.
    Watch,
    /// Have the last work's tokens drawn.
    Draw,
    /// Wait for the oldest flight and answer it.
    Land,
    /// Nothing is left, and nothing will come.
    End,
}

/// What comes next, with this work under way, oldest first; `more` is whether any may
/// still come.
pub(super) fn turn(under_way: &[Progress], more: bool) -> Turn {
    match under_way {
        [] if more => Turn::Receive,
        [] => Turn::End,
        [Progress::Launched] => Turn::Draw,
        [Progress::Drawn] if more => Turn::Watch,
        // The last is drawn when the one before it has landed.
        [..] => Turn::Land,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives the thread's loop; `letters` say what it did: work `n` is received as `r`,
    /// drawn as `d`, landed as `l`. Work comes whenever `comes` says so.
    fn story(works: usize, mut comes: impl FnMut() -> bool) -> String {
        let mut under_way: Vec<Progress> = Vec::new();
        let mut letters = String::new();
        let mut received = 0;
        loop {
            match turn(&under_way, received < works) {
                Turn::End => return letters,
                Turn::Watch if !comes() => {
                    // The flight was ready first.
                    under_way.remove(0);
                    letters.push('l');
                }
                Turn::Receive | Turn::Watch => {
                    received += 1;
                    under_way.push(Progress::Launched);
                    letters.push('r');
                }
                Turn::Draw => {
                    *under_way.last_mut().expect("some work") = Progress::Drawn;
                    letters.push('d');
                }
                Turn::Land => {
                    assert_eq!(under_way.remove(0), Progress::Drawn);
                    letters.push('l');
                }
            }
            assert!(under_way.len() <= 2);
        }
    }

    #[test]
    fn the_next_is_launched_before_one_lands_and_drawn_after() {
        assert_eq!(story(3, || true), "rdrldrldl");
    }

    #[test]
    fn without_next_work_one_lands() {
        assert_eq!(story(3, || false), "rdlrdlrdl");
        let mut times = [true, false, true].into_iter().cycle();
        let mixed = story(6, || times.next().expect("a cycle"));
        assert_eq!(mixed.matches('l').count(), 6);
    }
}
