use super::*;

fn parsed(words: &str) -> Result<Asked, Refusal> {
    parse(words.split_whitespace().map(OsString::from))
}

fn run(words: &str) -> Given {
    match parsed(words) {
        Ok(Asked::Run(given)) => given,
        other => panic!("{words}: {other:?}"),
    }
}

fn refused(words: &str) -> String {
    match parsed(words) {
        Err(refusal) => refusal.text,
        other => panic!("{words}: {other:?}"),
    }
}

// covers: DMN-09
#[test]
fn short_long_and_abbreviated_forms_mean_the_same() {
    let all = Given {
        console: true,
        notify_dir: Some("/x".into()),
        max_processes: Some(16),
        max_sockets: Some(8),
        force_rst: true,
        verbose: Some(5),
        retry_interval: Some(Duration::from_millis(20)),
        config: Some("/c".into()),
    };
    let long = "--console --notify-dir /x --pid 0x10 --fid=010 --force-rst --verbose 5 \
                --retry-interval 20 --config /c";
    assert_eq!(run(long), all);
    assert_eq!(run("--cons -n/x -p 16 -f8 --force -v5 -r 20 --conf /c word"), all);
    assert_eq!(run("--retry=20").retry_interval, all.retry_interval);
}

#[test]
fn a_capacity_need_not_be_prime() {
    assert_eq!(run("-p 500").max_processes, Some(500));
    assert_eq!(refused("-p 0"), "option '-p': it must be at least 1");
}

#[test]
fn a_wrong_number_names_its_option() {
    assert_eq!(refused("-p abc"), "option '-p': 'abc' is not a number");
    assert_eq!(refused("--fid 12x"), "option '--fid': '12x' is not a number");
    assert_eq!(refused("--retry 0x"), "option '--retry-interval': '0x' is not a number");
    assert_eq!(refused("-v +1"), "option '-v': '+1' is not a number");
    assert_eq!(refused("-r 4294967296"), "option '-r': '4294967296' is more than 4294967295");
}

#[test]
fn what_is_no_option_is_refused_in_getopts_words() {
    assert_eq!(refused("--nothing"), "unrecognized option '--nothing'");
    assert_eq!(refused("-x"), "invalid option -- 'x'");
    assert_eq!(refused("-C"), "invalid option -- 'C'");
    assert_eq!(refused("-p"), "option '-p' requires an argument");
    assert_eq!(refused("--notify"), "option '--notify-dir' requires an argument");
    assert_eq!(refused("--console=1"), "option '--console' doesn't allow an argument");
    let f = "option '--f' is ambiguous; possibilities: '--fid' '--force-rst'";
    assert_eq!(refused("--f"), f);
}

#[test]
fn our_own_option_takes_no_abbreviation_from_the_originals() {
    assert_eq!(run("--c"), Given { console: true, ..Given::default() });
    assert_eq!(run("--con"), Given { console: true, ..Given::default() });
}

#[test]
fn the_usage_shows_what_was_given_before() {
    let Ok(Asked::Help(given)) = parsed("--console -v9 --help -p 7") else { panic!("no help") };
    let text = usage(&given);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[2], format!("version: {} (0x3)", env!("CARGO_PKG_VERSION")));
    assert_eq!((lines[3], lines[4]), ("", "Usage: vmad [options]"));
    let option = |start: &str| {
        let line = lines.iter().find(|line| line.starts_with(&format!("\t{start}")));
        line.copied().unwrap_or_else(|| panic!("no {start} in {text}"))
    };
    assert!(option("--console").ends_with("(default: on)"));
    assert!(option("--verbose,-v <level>").ends_with("(default: 9)"));
    assert!(option("--pid,-p <num>").ends_with("(default: 499)"));
    assert!(option("--fid,-f <num>").ends_with("(default: 65599)"));
    assert!(option("--force-rst").ends_with("(default: off)"));
    assert!(option("--retry-interval,-r <num>").ends_with("(default: 1000)"));
    assert!(option("--notify-dir").ends_with("(default: /tmp/vma)"));
    assert_eq!(option("--help,-h").find("Print"), Some(33));
}
