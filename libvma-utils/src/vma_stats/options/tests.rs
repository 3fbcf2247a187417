use super::*;

fn read(line: &str) -> Result<Asked, Refusal> {
    parse("vma_stats", line.split_whitespace().map(OsString::from))
}

fn options(line: &str) -> Options {
    match read(line) {
        Ok(Asked::Report(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

fn refusal(line: &str) -> String {
    match read(line) {
        Err(Refusal::Option(text)) => format!("exit 0, {text}"),
        Err(Refusal::Value(text)) => format!("exit 1, {text}"),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn nothing_said_is_the_basic_view_of_the_first_process_for_ever() {
    let said = options("");
    assert_eq!(said, Options::default());
    assert_eq!((said.choice, said.cycles), (Choice::Find, 0));
    assert_eq!((said.format, said.details), (Format::Basic, Details::Totals));
}

// covers: STAT-01, STAT-02, STAT-05, STAT-06, STAT-07, STAT-08, STAT-13, STAT-15, STAT-17
#[test]
fn short_and_long_options_are_the_same() {
    let long = "--pid=77 --directory /run/x --forbid_clean --interval=3 --cycles 9 --view=2 \
                --details=2 --zero --log_level=debug --details_level 3 --sockets=4-6,9 \
                --fd_dump 17 warning";
    let short = "-p77 -k /run/x -F -i 3 -c9 -v 2 -d2 -zl debug -D3 -s4-6,9 -S17 warning";
    assert_eq!(options(short), options(long));
    let said = options(long);
    assert_eq!(said.choice, Choice::Process(77));
    assert_eq!(said.directory, PathBuf::from("/run/x"));
    assert_eq!((said.interval, said.cycles), (Duration::from_secs(3), 9));
    assert_eq!((said.format, said.details), (Format::Extra, Details::Deltas));
    assert_eq!((said.clean, said.zero), (false, true));
    assert_eq!((said.log_level, said.log_details, said.dump), (Some(5), Some(3), Some((17, 2))));
    assert!(said.sockets.has(5) && said.sockets.has(9) && !said.sockets.has(7));
}

#[test]
fn long_options_may_be_cut_short_while_only_one_is_meant() {
    assert_eq!(options("--cyc 3").cycles, 3);
    assert_eq!(options("--details 2").details, Details::Deltas);
    assert_eq!(
        refusal("--det 2"),
        "exit 0, vma_stats: option '--det' is ambiguous; possibilities: '--details' \
         '--details_level'"
    );
}

#[test]
fn later_options_win() {
    assert_eq!(options("-p 5 -n nginx").choice, Choice::Name("nginx".into()));
    assert_eq!(options("-n nginx -f").choice, Choice::Find);
    assert_eq!(options("-v 3 -v 4").format, Format::Groups);
    assert_eq!(options("-p 0x10 -v 5").choice, Choice::Process(16));
    assert_eq!(options("-p 010").choice, Choice::Process(8));
}

// covers: STAT-14
#[test]
fn a_dump_has_a_level_unless_an_option_follows() {
    assert_eq!(options("-S 5").dump, Some((5, 3)));
    assert_eq!(options("-S5 -z").dump, Some((5, 3)));
    assert_eq!(options("--fd_dump=5 fine").dump, Some((5, 6)));
    assert_eq!(options("--fd_dump 0 4").dump, Some((0, 5)));
    assert_eq!(refusal("-S 5 loud"), "exit 1, '-S' Invalid log level val: loud");
}

// covers: STAT-16
#[test]
fn levels_are_those_of_the_manual_and_their_names() {
    for (word, level) in [("1", 1), ("4", 5), ("7", 8), ("INFO", 3), ("details", 4), ("none", -1)] {
        assert_eq!(options(&format!("-l {word}")).log_level, Some(level), "{word}");
    }
    assert_eq!(level_name(5), "DEBUG");
}

// covers: STAT-22
#[test]
fn the_oldest_form_is_a_number_of_a_process_and_a_level() {
    assert_eq!(options("77").choice, Choice::Process(77));
    assert_eq!(options("77 1").format, Format::Full);
    assert_eq!(options("77 0").format, Format::Basic);
    assert_eq!(options("77 1 -v 1").format, Format::Basic);
    assert_eq!(options("something -n nginx 77").choice, Choice::Name("nginx".into()));
    assert_eq!(options("-- -p").choice, Choice::Find);
}

#[test]
fn values_that_cannot_be_are_refused() {
    for (line, text) in [
        ("-i -1", "'-i' Invalid interval val: -1"),
        ("-c -2", "'-c' Invalid cycles val: -2"),
        ("-c x", "'-c' Invalid cycles val: x"),
        ("-v 6", "'-v' Invalid view val: 6"),
        ("-v 0", "'-v' Invalid view val: 0"),
        ("-d 3", "'-d' Invalid details val: 3"),
        ("-l loud", "'-l' Invalid log level val: loud"),
        ("-D 4", "'-D' Invalid details level val: 4"),
        ("-S -1", "'-S' Invalid fd val: -1"),
        ("-p -5", "'-p' Invalid pid val: -5"),
        ("-p nginx", "'-p' Invalid pid val: nginx"),
        ("-s 4-x", "Invalid fd val: 4-x"),
        ("-s 9-4", "Invalid fd val: 9-4"),
        ("-s 3,-4", "Invalid fd val: -4"),
        ("-s 2147483647", "Invalid fd val: 2147483647"),
        ("--listen 9464", "'--listen' Invalid address val: 9464"),
    ] {
        assert_eq!(refusal(line), format!("exit 1, {text}"), "{line}");
    }
}

#[test]
fn what_is_no_option_is_refused_in_the_words_of_getopt() {
    for (line, text) in [
        ("-x", "invalid option -- 'x'"),
        ("-zJ", "invalid option -- 'J'"),
        ("--bogus", "unrecognized option '--bogus'"),
        ("-p", "option requires an argument -- 'p'"),
        ("--pid", "option '--pid' requires an argument"),
        ("--zero=5", "option '--zero' doesn't allow an argument"),
    ] {
        assert_eq!(refusal(line), format!("exit 0, vma_stats: {text}"), "{line}");
    }
}

// covers: STAT-19
#[test]
fn help_and_version_end_the_reading() {
    assert_eq!(read("-h --bogus"), Ok(Asked::Help));
    assert_eq!(read("-?"), Ok(Asked::Help));
    assert_eq!(read("-z --version -x"), Ok(Asked::Version));
}

// covers: STAT-18
#[test]
fn descriptors_are_lists_and_ranges() {
    let all = options("").sockets;
    assert!(all.is_all() && all.has(0) && all.has(5000));
    let some = options("-s 4-16,19 -s 30").sockets;
    let chosen: Vec<i32> = (0..40).filter(|descriptor| some.has(*descriptor)).collect();
    let meant: Vec<i32> = (4..=16).chain([19, 30]).collect();
    assert_eq!(chosen, meant);
}

// covers: STAT-21
#[test]
fn the_usage_has_every_option_in_order() {
    let text = usage("/usr/bin/vma_stats");
    let start = "\nVMA Statistics\nUsage:\n\t/usr/bin/vma_stats [-p pid] [-k directory] [-v view] \
                 [-d details] [-i interval]\n\nDefaults:\n\tfind_pid=enabled, directory=\"/tmp/\", \
                 view=1, details=1, interval=1, \n\nOptions:\n\t-p, --pid=<pid>";
    assert!(text.starts_with(start), "{text}");
    let letters: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("\t-")?.chars().next())
        .filter(|letter| letter.is_alphabetic())
        .collect();
    assert_eq!(letters, "pknfFicvdzlSDsVh");
    for (name, _) in LONG {
        assert!(text.contains(&format!("--{name}")), "{name}");
    }
}
