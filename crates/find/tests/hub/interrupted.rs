//! Downloads that are interrupted, and continue or are given up.

use std::fs;
use std::time::Duration;

use crate::loopback::{Fault, Manners, Stored};
use crate::{Case, GGUF, GGUF_BYTES, check_gguf, content, gguf};

#[test]
fn an_interrupted_download_continues() {
    let case = Case::gguf("continued");
    case.hub
        .fail([Fault::CutAfter(100_000), Fault::CutAfter(50_000)]);
    check_gguf(
        &case
            .find("hf:org/small")
            .expect("the third attempt brings the rest"),
    );
    let path = format!("/{GGUF}");
    let expected = [
        path.clone(),
        format!("{path} from 100000"),
        format!("{path} from 150000"),
    ];
    assert_eq!(case.requests(), expected);

    // Another process continues where this one gave up.
    let case = Case::gguf("given-up");
    case.hub.fail([
        Fault::CutAfter(100_000),
        Fault::Status(500),
        Fault::Status(503),
    ]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("status 503, after 3 attempts. What has arrived is kept"),
        "{error}"
    );
    assert_eq!(case.partial(), Some(100_000));
    case.requests();
    check_gguf(&case.find("hf:org/small").expect("it continues"));
    assert_eq!(case.requests(), [format!("{path} from 100000")]);
    assert_eq!(case.partial(), None);
}

/// A long download over a bad line ends, and one that hardly moves is given up.
#[test]
fn attempts_that_bring_a_megabyte_do_not_count_as_failed() {
    const MEGABYTE: u64 = 1 << 20;
    for (bytes, is_enough) in [(MEGABYTE, true), (MEGABYTE - 1, false)] {
        let file = Stored::bytes(GGUF, content(1, 3 * MEGABYTE as usize));
        let mut case = Case::new(&format!("line-{bytes}"), vec![file], Manners::default());
        case.finder.hub.retries = 1;
        case.hub.fail([Fault::CutAfter(bytes); 2]);
        assert_eq!(case.find("hf:org/small").is_ok(), is_enough, "{bytes}");
    }
}

#[test]
fn a_server_without_ranges_sends_the_whole_again() {
    let case = Case::gguf("no-range");
    case.hub.fail([Fault::CutAfter(100_000), Fault::NoRange]);
    check_gguf(&case.find("hf:org/small").expect("the whole comes again"));
}

/// The whole comes from the start each time, and the file does not grow.
#[test]
fn a_server_without_ranges_that_cuts_off_is_given_up() {
    const MEGABYTE: u64 = 1 << 20;
    let file = Stored::bytes(GGUF, content(1, 6 * MEGABYTE as usize));
    let case = Case::new("no-range-cut", vec![file], Manners::default());
    case.hub.fail([Fault::CutAfter(5 * MEGABYTE)]);
    case.hub.fail([Fault::NoRangeCutAfter(4 * MEGABYTE); 9]);
    let error = case.failure("hf:org/small");
    // The first attempt brought five new megabytes, and the two retries none.
    assert!(error.contains("after 3 attempts"), "{error}");
    assert_eq!(case.partial(), Some(5 * MEGABYTE));
}

#[test]
fn a_wrong_answer_deletes_nothing() {
    for (fault, what, name) in [
        (Fault::Html, "a page of HTML, 4 bytes", "page-later"),
        (Fault::UnreadableRange, "an unreadable range", "no-bytes"),
    ] {
        let case = Case::gguf(name);
        case.hub.fail([Fault::CutAfter(100_000), fault]);
        let error = case.failure("hf:org/small");
        assert!(error.contains(what), "{error}");
        assert_eq!(case.partial(), Some(100_000), "{name}");
        case.requests();
        check_gguf(&case.find("hf:org/small").expect("it continues"));
        assert_eq!(case.requests(), [format!("/{GGUF} from 100000")]);
    }
}

/// Another process waits for its own reasons, or hangs.
#[test]
fn a_lock_is_waited_for_as_long_as_the_file_grows() {
    let mut case = Case::gguf("locked");
    case.finder.hub.lock_wait = Duration::from_millis(300);
    let locks = case.root.join("hub/.locks/models--org--small");
    let blobs = case.repository().join("blobs");
    for folder in [&locks, &blobs] {
        fs::create_dir_all(folder).expect("a folder");
    }
    let digest = gguf(GGUF).digest;
    let path = locks.join(format!("{digest}.lock"));
    let lock = fs::File::create(&path).expect("a file");
    lock.lock().expect("it is free");
    let error = case.failure("hf:org/small");
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(error.contains("small-Q8_0.gguf does not grow"), "{error}");

    let partial = blobs.join(format!("{digest}.incomplete"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for bytes in 1..=10 {
                fs::write(&partial, &content(1, GGUF_BYTES)[..bytes]).expect("a file");
                std::thread::sleep(Duration::from_millis(100));
            }
            drop(lock);
        });
        check_gguf(&case.find("hf:org/small").expect("it waits"));
    });
}

#[test]
fn a_rejected_range_leads_to_the_whole() {
    let case = Case::gguf("no-such-range");
    case.hub
        .fail([Fault::CutAfter(100_000), Fault::Status(416)]);
    check_gguf(&case.find("hf:org/small").expect("the whole comes"));
    let path = format!("/{GGUF}");
    let expected = [path.clone(), format!("{path} from 100000"), path];
    assert_eq!(case.requests(), expected);
}

#[test]
fn a_silent_server_is_asked_again_and_given_up_in_the_end() {
    let mut case = Case::gguf("silent");
    case.finder.hub.timeout = Duration::from_millis(200);
    case.hub.fail([Fault::StallAfter(100_000)]);
    check_gguf(
        &case
            .find("hf:org/small")
            .expect("the second attempt brings the rest"),
    );

    let mut case = Case::gguf("silence");
    case.finder.hub.timeout = Duration::from_millis(200);
    case.hub.fail([Fault::StallAfter(10); 3]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("after 3 attempts"), "{error}");
    assert!(error.to_lowercase().contains("timeout"), "{error}");
}

#[test]
fn a_failing_listing_is_repeated_within_bounds() {
    for (failing_listings, name) in [(2, "busy"), (3, "too-busy")] {
        let manners = Manners {
            failing_listings,
            ..Manners::default()
        };
        let case = Case::new(name, vec![gguf(GGUF)], manners);
        match case.find("hf:org/small") {
            Ok(found) => check_gguf(&found),
            Err(error) => {
                assert_eq!(failing_listings, 3);
                assert!(
                    error.to_string().contains("status 503, after 3 attempts"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn a_partial_file_that_is_not_the_models_is_not_loaded() {
    for (bytes, name) in [
        (GGUF_BYTES, "full"),
        (GGUF_BYTES + 1, "longer"),
        (10, "shorter"),
    ] {
        let case = Case::gguf(name);
        let blobs = case.repository().join("blobs");
        fs::create_dir_all(&blobs).expect("a folder");
        let partial = blobs.join(format!("{}.incomplete", gguf(GGUF).digest));
        fs::write(&partial, vec![7; bytes]).expect("a file");
        if bytes <= GGUF_BYTES {
            let error = case.failure("hf:org/small");
            assert!(error.contains("it was removed"), "{error}");
        }
        check_gguf(&case.find("hf:org/small").expect("it comes whole"));
    }
}

/// `/dev/full` is a disk without space.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_with_the_bytes_that_it_lacks() {
    let case = Case::gguf("full-disk");
    let blobs = case.repository().join("blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.incomplete", gguf(GGUF).digest));
    std::os::unix::fs::symlink("/dev/full", &partial).expect("a link");
    let error = case.failure("hf:org/small");
    assert!(error.contains("No space left on device"), "{error}");
    assert!(
        error.contains("; 300000 more bytes are needed there"),
        "{error}"
    );
}
