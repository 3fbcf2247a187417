//! The documents that ship with a release: there, and their links lead somewhere.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[track_caller]
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between `](` and `)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn the_documents_of_a_release_are_there_and_the_user_manual_leads_to_them() {
    let manual = read(&root().join("docs/user-manual.md"));
    for name in ["release-notes.md", "installation.md", "parameters.md", "monitoring.md"] {
        let text = read(&root().join("docs").join(name));
        assert!(text.lines().count() > 10, "{name}");
        assert!(links(&manual).any(|link| link == name), "the user manual does not name {name}");
    }
    let notes = read(&root().join("docs/release-notes.md"));
    let heading = format!("# libvma {}: release notes\n", env!("CARGO_PKG_VERSION"));
    assert!(notes.starts_with(&heading), "{:?}", notes.lines().next());
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)).into();
    let entries = std::fs::read_dir(root().join("docs")).expect("the documents");
    documents.extend(entries.map(|entry| entry.unwrap().path()));
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut count = 0;
    for document in &documents {
        let text = read(document);
        for link in links(&text).filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = document.parent().expect("a folder").join(file);
            assert!(path.exists(), "{}: no {link}", document.display());
            if file.is_empty() {
                assert!(text.lines().any(|line| anchor(line) == heading), "no heading for {link}");
            }
            count += 1;
        }
    }
    assert!(count > 10, "{count} links in {documents:?}");
}

// covers: INS-13
#[test]
fn installed_documents_lead_only_to_installed_ones() {
    let package = read(&root().join("libvma/Cargo.toml"));
    let (mut installed, mut count) = (Vec::new(), 0);
    for line in package.lines().filter(|line| line.contains("\"../docs/")) {
        let (_, rest) = line.split_once("usr/share/doc/libvma/").unwrap_or_default();
        installed.extend(rest.split('"').next().filter(|name| !name.is_empty()));
    }
    for name in ["release-notes.md", "installation.md", "user-manual.md"] {
        assert!(installed.contains(&name), "{name} is not installed: {installed:?}");
    }
    for name in installed.iter().filter(|name| name.ends_with(".md")) {
        let text = read(&root().join("docs").join(name));
        for link in links(&text).filter(|link| !link.contains("://")) {
            let (file, _) = link.split_once('#').unwrap_or((link, ""));
            assert!(file.is_empty() || installed.contains(&file), "{name} leads to {link}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} links in {installed:?}");
}

/// The name that a heading is linked by.
fn anchor(line: &str) -> String {
    let heading = line.trim_start_matches('#').trim();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
