//! Documents that tests write from what they compare, and hold true.

use std::path::Path;

/// Compares a file of docs/ with what it should be; with UPDATE=1 makes it so. `tests` is a word of the tests'
/// names that write it.
#[track_caller]
pub fn is_current(name: &str, expected: &str, tests: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).expect("the document is writable");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(expected.lines()).find(|(is, should)| is != should);
    assert!(
        text == expected,
        "docs/{name} is stale: UPDATE=1 cargo nextest run -p libvma --test differential -E 'test(/{tests}/)'\n\
         the first line that differs, as it is and as it should be: {differs:#?}"
    );
}
