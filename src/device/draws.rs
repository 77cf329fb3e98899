//! What slots draw: the drawings that a step is given, and what comes of them.

use super::table::{Last, Table};
use motet_core::protocol::{DrawerStart, GrammarError, PlannedSpan, Readout, Want};
use motet_model::Model;
use motet_model::sampling::{Drawer, Drawing};

impl<M: Model> Table<M> {
    pub(super) fn start(&mut self, drawers: Vec<DrawerStart>) {
        for start in drawers {
            // A slot that is not there was lost with the step before.
            if let Some(slot) = self.slots.get_mut(&start.slot) {
                let DrawerStart {
                    spec,
                    sampling,
                    prompt,
                    output,
                    ..
                } = start;
                slot.drawer = Some(Drawer::new(spec, sampling, &prompt, &output));
            }
        }
    }

    /// A drawing for each span that wants a token; plain where its drawer failed, in
    /// which case the span and the reason are told too.
    pub(super) fn drawings(
        &mut self,
        spans: &[PlannedSpan],
    ) -> (Vec<Drawing>, Vec<(usize, GrammarError)>) {
        let mut failed = Vec::new();
        let mut drawings = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let Want::Token(draw) = span.want else {
                continue;
            };
            let slot = self.slots.get_mut(&span.slot);
            let drawer = slot.and_then(|slot| slot.drawer.as_mut());
            let drawing = drawer.map(|drawer| drawer.drawing(draw));
            drawings.push(match drawing {
                Some(Ok(drawing)) => drawing,
                None => Drawing::plain(draw),
                Some(Err(error)) => {
                    failed.push((index, error));
                    Drawing::plain(draw)
                }
            });
        }
        (drawings, failed)
    }

    /// Tells slots what they have drawn.
    pub(super) fn accept(&mut self, launch: u64, spans: &[PlannedSpan], readouts: &[Readout]) {
        for (index, (span, readout)) in spans.iter().zip(readouts).enumerate() {
            // The slot may have been closed meanwhile.
            let (Some(token), Some(slot)) = (readout.token(), self.slots.get_mut(&span.slot))
            else {
                continue;
            };
            if let Last::UnderWay { launch: of, span } = slot.last
                && (of, span) == (launch, index)
            {
                slot.last = Last::Token(token);
            }
            if let Some(drawer) = &mut slot.drawer {
                drawer.accept(token);
            }
        }
    }
}
