//! Compares the MLX libraries that a program has loaded with the versions that this crate
//! needs.

use std::ffi::{CStr, c_char, c_int};

use super::find;

/// The version of the bridge that this crate needs.
pub(super) const VERSION: c_int = 3;

/// The mlx-sys whose bindings this crate was built with, as in `build/prepared.rs`.
const MLX_SYS: &str = "0.7.0";

/// The versions that the loaded libraries report; `None` where they report nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loaded {
    bridge: Option<c_int>,
    mlx_sys: Option<String>,
}

/// Returns why this process' MLX libraries do not fit this version, and how to fix it. The
/// bridge's version counts only where kernels are needed.
#[must_use]
pub fn outdated(needs_kernels: bool) -> Option<String> {
    let loaded = Loaded {
        bridge: found(),
        mlx_sys: found_mlx_sys(),
    };
    mismatch(&loaded, needs_kernels)
}

/// The version of this process' bridge, if it has one.
pub(super) fn found() -> Option<c_int> {
    let version = find(c"motet_bridge_version");
    if version.is_null() {
        return None;
    }
    // SAFETY: every version of the bridge has this function with this signature.
    let version: extern "C" fn() -> c_int = unsafe { std::mem::transmute(version) };
    Some(version())
}

/// The mlx-sys that this process' libmlxc was built from. Only libraries that `cargo xtask
/// setup` has built report it.
fn found_mlx_sys() -> Option<String> {
    let version = find(c"motet_bridge_mlx_sys");
    if version.is_null() {
        return None;
    }
    // SAFETY: every bridge that has this function has it with this signature.
    let version: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(version) };
    // SAFETY: it returns a constant string.
    let version = unsafe { CStr::from_ptr(version()) };
    let version = version.to_string_lossy().into_owned();
    Some(version).filter(|version| !version.is_empty())
}

fn mismatch(loaded: &Loaded, needs_kernels: bool) -> Option<String> {
    let mut reasons = Vec::new();
    if let Some(found) = loaded
        .bridge
        .filter(|found| needs_kernels && *found != VERSION)
    {
        reasons.push(format!(
            "their bridge is version {found}, expected {VERSION}"
        ));
    }
    if let Some(found) = loaded.mlx_sys.as_ref().filter(|found| *found != MLX_SYS) {
        reasons.push(format!("they are for mlx-sys {found}, expected {MLX_SYS}"));
    }
    if reasons.is_empty() {
        return None;
    }
    Some(format!(
        "the MLX libraries were prepared for another version than motet {}: {}. Run `cargo xtask \
         setup` (with `--for FOLDER` for a crate outside its checkout) and build again; for a \
         program that was shipped with them, `cargo xtask bundle` too",
        env!("CARGO_PKG_VERSION"),
        reasons.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatched_libraries_are_rejected_with_both_versions() {
        let loaded = |bridge, mlx_sys: Option<&str>| Loaded {
            bridge,
            mlx_sys: mlx_sys.map(String::from),
        };
        let other = VERSION - 1;
        let their_bridge = format!("their bridge is version {other}, expected {VERSION}");
        let their_mlx_sys = format!("they are for mlx-sys 0.6.9, expected {MLX_SYS}");
        let cases = [
            (loaded(None, None), true, vec![]),
            (loaded(Some(VERSION), Some(MLX_SYS)), true, vec![]),
            (
                loaded(Some(other), Some(MLX_SYS)),
                true,
                vec![&their_bridge],
            ),
            (loaded(Some(other), None), false, vec![]),
            (loaded(None, Some("0.6.9")), false, vec![&their_mlx_sys]),
            (
                loaded(Some(other), Some("0.6.9")),
                true,
                vec![&their_bridge, &their_mlx_sys],
            ),
        ];
        for (loaded, needs_kernels, reasons) in cases {
            let mismatch = mismatch(&loaded, needs_kernels);
            assert_eq!(mismatch.is_some(), !reasons.is_empty(), "{loaded:?}");
            for reason in reasons {
                let text = mismatch.as_deref().unwrap_or_default();
                assert!(text.contains(reason), "no {reason:?} in {text:?}");
                assert!(text.contains("cargo xtask setup"), "{text:?}");
            }
        }
    }

    #[test]
    fn both_halves_of_the_bridge_have_one_version() {
        let source = include_str!("bridge.cpp");
        assert!(source.contains(&format!("return {VERSION};")));
        let prepared = include_str!("../../../build/prepared.rs");
        assert!(prepared.contains(&format!("MLX_SYS: &str = \"{MLX_SYS}\";")));
        assert_eq!(outdated(true), None, "the libraries of this test");
    }
}
