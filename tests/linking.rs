//! The build rejects a missing set-up, and libraries that were prepared for another version.

#[path = "../crates/mlx-setup/build/check.rs"]
mod check;
#[path = "../crates/mlx/build/prepared.rs"]
mod prepared;

use std::path::Path;

use prepared::{MLX_SYS, Needed, Prepared, bridge_version};

const BRIDGE: &str = include_str!("../crates/mlx/src/device/bridge/bridge.cpp");
const COMMAND: &str = "cargo xtask setup --for /srv/app";
const NEEDED: Needed<'_> = Needed {
    motet: "0.3.0",
    bridge: "4",
    mlx_sys: "0.7.0",
};
/// The variables as the set-up of the needed version records them.
const FITTING: [(&str, &str); 5] = [
    ("DEP_MLX_MOTET_VERSION", "0.3.0"),
    ("DEP_MLX_MOTET_BRIDGE", "4"),
    ("DEP_MLX_MOTET_MLX_SYS", "0.7.0"),
    ("DEP_MLX_MOTET_LIBRARIES", "/cache/mlxc"),
    ("MOTET_SETUP_COMMAND", COMMAND),
];

/// The error when some variables differ from those of a fitting set-up.
fn mismatch(changed: &[(&str, &str)]) -> Option<String> {
    let variables = FITTING.map(|(name, value)| {
        let other = changed.iter().find(|(changed, _)| *changed == name);
        (name, other.map_or(value, |(_, value)| *value))
    });
    let read = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Prepared::read(read).mismatch(&NEEDED, |library| {
        library == Path::new("/cache/mlxc/libmlxc.so")
    })
}

#[test]
fn matching_libraries_are_accepted() {
    assert_eq!(mismatch(&[]), None);
    // Another version of this crate with the same bridge and mlx-sys.
    assert_eq!(mismatch(&[("DEP_MLX_MOTET_VERSION", "0.2.0")]), None);
    // A configuration written by hand.
    assert_eq!(Prepared::default().mismatch(&NEEDED, |_| false), None);
}

#[test]
fn mismatch_reports_both_versions_and_the_command() {
    let cases: [(&[_], &[_]); 4] = [
        (
            &[
                ("DEP_MLX_MOTET_BRIDGE", "3"),
                ("DEP_MLX_MOTET_VERSION", "0.2.0"),
            ],
            &[
                "bridge is version 3, expected 4",
                "that motet 0.2.0 prepared",
            ],
        ),
        (
            &[("DEP_MLX_MOTET_MLX_SYS", "0.6.0")],
            &["for mlx-sys 0.6.0, expected 0.7.0"],
        ),
        (
            &[
                ("DEP_MLX_MOTET_MLX_SYS", "0.6.0"),
                ("DEP_MLX_MOTET_BRIDGE", "5"),
            ],
            &[
                "for mlx-sys 0.6.0, expected 0.7.0",
                "bridge is version 5, expected 4",
            ],
        ),
        (
            &[("DEP_MLX_MOTET_LIBRARIES", "/elsewhere")],
            &["/elsewhere/libmlxc.so is not there"],
        ),
    ];
    for (changed, parts) in cases {
        let text = mismatch(changed).expect("it does not fit");
        let always = [COMMAND, "do not fit motet 0.3.0"];
        for part in parts.iter().chain(&always) {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
        assert!(!text.contains('\n'), "cargo shows one line: {text:?}");
    }
}

#[test]
fn bridge_version_is_parsed() {
    let version = bridge_version(BRIDGE).expect("a version");
    assert!(
        version.parse::<u32>().is_ok_and(|version| version > 0),
        "{version}"
    );
    let four = "extern \"C\" int motet_bridge_version(void) {\n  return 4;\n}";
    assert_eq!(bridge_version(four), Some("4"));
    assert_eq!(
        bridge_version("int motet_bridge_version(void) { return V; }"),
        None
    );
    assert_eq!(bridge_version("int another(void) { return 4; }"), None);
}

#[test]
fn mlx_sys_is_pinned_to_what_the_build_script_needs() {
    let manifest = include_str!("../crates/mlx/Cargo.toml");
    let pin = format!("mlx-sys = {{ version = \"={MLX_SYS}\"");
    assert!(manifest.contains(&pin), "no {pin:?} in Cargo.toml");
}

#[test]
fn a_build_on_mlx_without_a_set_up_names_the_commands() {
    let missing = |variables: &[(&str, &str)]| {
        check::missing("0.3.0", |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    let (on_mlx, linux) = (("CARGO_FEATURE_MLX", "1"), ("CARGO_CFG_TARGET_OS", "linux"));
    for variables in [&[on_mlx, linux][..], &[on_mlx, linux, (check::COMMAND, "")]] {
        let error = missing(variables).expect("there is no set-up");
        for part in [
            "motet 0.3.0",
            "`cargo xtask serve --model MODEL`",
            "`cargo xtask setup`",
            "`cargo xtask setup --for FOLDER`",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains('\n'), "cargo shows one line");
    }
    // A build without MLX, a set-up, a system where mlx-sys builds MLX, and docs.rs.
    let no_features = [linux];
    let set_up = [on_mlx, linux, (check::COMMAND, COMMAND)];
    let macos = [on_mlx, ("CARGO_CFG_TARGET_OS", "macos")];
    let docs = [on_mlx, linux, ("DOCS_RS", "1")];
    for variables in [&no_features[..], &set_up, &macos, &docs] {
        assert_eq!(missing(variables), None, "{variables:?}");
    }
}
