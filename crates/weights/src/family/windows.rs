//! Sliding-window layers among layers of full attention.

use super::super::ModelError;
use super::super::blueprint::Blueprint;
use super::super::fields::Fields;
use super::super::limits::LAYERS_MAX;
use super::super::settings::{Pattern, Settings};
use super::llama::attentions;

pub(super) const SLIDING: &str = "sliding_attention";
pub(super) const FULL: &str = "full_attention";

/// Gives the window, if there is one, to the layers that `layer_types` lists, or else to all but
/// every `pattern`th. Returns whether each layer is one of these. Without a window, all layers of
/// a GGUF file are layers of full attention.
pub(super) fn alternate(
    settings: &Settings<'_>,
    blueprint: &mut Blueprint,
    pattern: usize,
) -> Result<Vec<bool>, ModelError> {
    let layers = blueprint.layers.len();
    let stated = settings.pattern("sliding_window_pattern", layers)?;
    let slides = |index: usize| match &stated {
        Some(Pattern::Flags(flags)) => flags[index],
        Some(Pattern::Every(stated)) => !(index + 1).is_multiple_of(*stated),
        None => !(index + 1).is_multiple_of(pattern),
    };
    let kind = |index| if slides(index) { SLIDING } else { FULL };
    let kinds = settings.kinds(&[SLIDING, FULL], layers, kind)?;
    let window = settings.window()?;
    let may_slide = window.is_some() || !settings.is_gguf();
    let slides = kinds.iter().map(|kind| *kind == SLIDING && may_slide);
    let slides: Vec<bool> = slides.collect();
    for (attention, slides) in attentions(blueprint).zip(&slides) {
        attention.window = window.filter(|_| *slides);
    }
    Ok(slides)
}

/// Gives the window to the upper layers, or to those that `layer_types` lists, if
/// `use_sliding_window` is set. Many files give a window that is not used.
pub(super) fn upper_windows(
    settings: &Settings<'_>,
    blueprint: &mut Blueprint,
) -> Result<(), ModelError> {
    if settings.flag("use_sliding_window")? != Some(true) {
        return Ok(());
    }
    let lower = settings.integer("max_window_layers")?.unwrap_or(0);
    let lower = usize::try_from(lower).unwrap_or(LAYERS_MAX);
    let by_index = |index| if index < lower { FULL } else { SLIDING };
    let layers = blueprint.layers.len();
    let kinds = settings.kinds(&[SLIDING, FULL], layers, by_index)?;
    let window = settings.window()?;
    for (attention, kind) in attentions(blueprint).zip(kinds) {
        attention.window = window.filter(|_| kind == SLIDING);
    }
    Ok(())
}
