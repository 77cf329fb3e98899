//! The README shows the quickstart example as it is compiled and run.

/// Code lines from `async fn main` to its end.
fn main_function(text: &str) -> Vec<&str> {
    let from = text.find("#[tokio::main]").expect("a main function");
    let body = &text[from..];
    let to = body.find("\n}\n").expect("the end of main") + 2;
    body[..to].lines().collect()
}

#[test]
fn the_readme_shows_the_quickstart() {
    let readme = include_str!("../README.md");
    let example = include_str!("../examples/quickstart.rs");
    let shown = main_function(readme);
    assert_eq!(
        shown,
        main_function(example),
        "README.md differs from examples/quickstart.rs"
    );
    assert!(shown.len() <= 20, "the example has {} lines", shown.len());
}
