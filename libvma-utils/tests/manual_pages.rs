//! The manual pages: they render without a warning, a tool's page has exactly its options, and
//! vma(7) leads to all of them. Needs man-db and groff-base.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tools, each of which has a page in section 8.
const TOOLS: [(&str, &str); 4] = [
    ("udp_lat", env!("CARGO_BIN_EXE_udp_lat")),
    ("vma_conf", env!("CARGO_BIN_EXE_vma_conf")),
    ("vma_stats", env!("CARGO_BIN_EXE_vma_stats")),
    ("vmad", env!("CARGO_BIN_EXE_vmad")),
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// The names of the files in docs that are manual pages.
fn pages() -> BTreeSet<String> {
    let entries = std::fs::read_dir(docs()).expect("the documents");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().expect("text"));
    names.filter(|name| name.ends_with(".7") || name.ends_with(".8")).collect()
}

fn text_of(page: &str) -> String {
    let path = docs().join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The page as man shows it, and what it warns of.
#[track_caller]
fn render(page: &Path) -> (String, String) {
    let output = Command::new("man")
        .args(["--warnings", "--local-file"])
        .arg(page)
        .env("LC_ALL", "C.UTF-8")
        // Warnings of other places, and what this user has set for himself.
        .env_remove("MANOPT")
        .env("MANWIDTH", "80")
        .stdin(Stdio::null())
        .output()
        .expect("man-db is installed");
    let [shown, warnings] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{}: {warnings}", page.display());
    (shown, warnings)
}

// covers: INS-14
#[test]
fn every_page_renders_without_a_warning() {
    let pages = pages();
    assert!(pages.contains("vma.7"), "{pages:?}");
    for page in pages {
        let (shown, warnings) = render(&docs().join(&page));
        assert_eq!(warnings, "", "{page}");
        let (name, section) = page.split_once('.').expect("a section");
        let heading = format!("{}({section})", name.to_uppercase());
        assert!(shown.starts_with(&heading), "{page}: no {heading} in {:?}", shown.lines().next());
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            assert!(shown.contains(&format!("\n{section}\n")), "{page}: no {section}");
        }
    }
}

#[test]
fn a_mistake_in_a_page_is_a_warning() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistake.8");
    std::fs::write(&page, ".TH MISTAKE 8\n.SH NAME\nmistake \\- page\n.NOSUCHMACRO\n").unwrap();
    let (_, warnings) = render(&page);
    assert!(warnings.contains("NOSUCHMACRO"), "{warnings}");
}

#[test]
fn a_tools_page_has_the_options_of_its_help() {
    for (name, path) in TOOLS {
        let output = Command::new(path).arg("--help").stdin(Stdio::null()).output().expect(name);
        assert!(output.status.success(), "{name} --help: {}", output.status);
        let help = String::from_utf8(output.stdout).expect("text");
        let of_help: BTreeSet<_> = help.lines().flat_map(options_at_the_start).collect();
        let of_page = options_of(&text_of(&format!("{name}.8")));
        assert!(of_help.len() > 3, "{name}: {of_help:?}");
        assert_eq!(of_page, of_help, "left {name}(8), right {name} --help");
    }
}

/// `-p` and `--port` of a line such as `  -p, --port <PORT>  The port`.
fn options_at_the_start(line: &str) -> Vec<String> {
    let words = line.split([' ', '\t', ',', '=', '[', '<']).filter(|word| !word.is_empty());
    words.take_while(|word| word.starts_with('-')).map(str::to_owned).collect()
}

/// The tags of the paragraphs in the OPTIONS section.
fn options_of(page: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    let (mut inside, mut tag) = (false, false);
    for line in page.lines() {
        if let Some(section) = line.strip_prefix(".SH ") {
            inside = section == "OPTIONS";
        }
        if inside && tag {
            let (_, words) = line.split_once(' ').expect("a font macro and words");
            let plain = words.replace("\\-", "-").replace('"', "");
            let found = options_at_the_start(&plain);
            assert!(!found.is_empty(), "no option in {line}");
            options.extend(found);
        }
        tag = line == ".TP";
    }
    options
}

#[test]
fn vma_7_names_the_files_and_leads_to_every_page() {
    let (shown, _) = render(&docs().join("vma.7"));
    // Bold letters come to a pipe as they are, and a line is broken between words only.
    let (_, see_also) = shown.split_once("SEE ALSO\n").expect("the section");
    for page in pages().iter().filter(|page| *page != "vma.7") {
        let (name, section) = page.split_once('.').expect("a section");
        let reference = format!("{name}({section})");
        assert!(see_also.contains(&reference), "no {reference} in vma(7):\n{see_also}");
    }
    for file in [
        "/etc/libvma.conf",
        "/usr/share/doc/libvma/README.txt",
        "/usr/share/doc/libvma/VMA_VERSION",
    ] {
        assert!(shown.contains(file), "no {file} in vma(7)");
    }
}

#[test]
fn pages_refer_only_to_pages_that_exist() {
    let pages = pages();
    for page in &pages {
        for reference in text_of(page).lines().filter_map(|line| line.strip_prefix(".BR ")) {
            let Some((name, rest)) = reference.split_once(" (") else { continue };
            let section = rest.split(')').next().expect("split yields one");
            let ours = name.starts_with("vma") || TOOLS.iter().any(|(tool, _)| *tool == name);
            // Rules of a profile and the like are written the same way.
            if ours && ["7", "8"].contains(&section) {
                let file = format!("{name}.{section}");
                assert!(pages.contains(&file), "{page} refers to {file}");
            }
        }
    }
}
