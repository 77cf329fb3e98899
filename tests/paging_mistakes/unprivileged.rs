//! Permissions that bind, even if the tests run as root.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use motet_testkit::folder::Folder;

/// A user without any privilege.
const UNPRIVILEGED_UID: u32 = 65_534;
/// Set in a process that runs as the unprivileged user.
const IS_UNPRIVILEGED: &str = "MOTET_TEST_IS_UNPRIVILEGED";

/// Gives a folder another mode.
pub(crate) fn permit(folder: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(folder, mode).expect("ours");
}

/// Whether permissions bind this process. If they do not, the test of this name runs in another
/// process, as the unprivileged user; the caller then has nothing left to do.
pub(crate) fn is_bound(test: &str) -> bool {
    let folder = Folder::new(&format!("bound-{test}"));
    std::fs::create_dir(&folder.0).expect("a folder");
    permit(&folder.0, 0o555);
    if std::fs::write(folder.0.join("probe"), "").is_err() {
        return true;
    }
    assert!(
        std::env::var_os(IS_UNPRIVILEGED).is_none(),
        "permissions bind the unprivileged user"
    );
    let program = std::env::current_exe().expect("a program");
    let child = Command::new(program)
        .args([test, "--exact"])
        .env(IS_UNPRIVILEGED, "1")
        .uid(UNPRIVILEGED_UID)
        .output();
    match child {
        Ok(ran) => {
            let stdout = String::from_utf8_lossy(&ran.stdout);
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{stdout}{stderr}");
            assert!(stdout.contains("1 passed"), "{stdout}");
        }
        Err(error) => {
            println!("not checked: the unprivileged user cannot run this program ({error})")
        }
    }
    false
}
