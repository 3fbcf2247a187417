use super::*;

/// VMA_EXCEPTION_HANDLING.
#[test]
fn an_option_that_is_not_served_is_refused_only_if_the_user_wants_that() {
    let why = WhyOs::Option { level: 1, name: 2 };
    assert_eq!(why.judge(Exceptions::Debug), Ok(()));
    assert_eq!(why.judge(Exceptions::Error), Ok(()));
    assert_eq!(why.judge(Exceptions::Refuse), Err(libc::EINVAL));
}

/// A warning that nobody can act upon is noise.
#[test]
fn the_user_is_warned_of_what_can_be_changed_and_is_not_of_the_own_choice() {
    let interface = |reason| WhyOs::Interface(reason).remedy();
    assert!(interface(NotOffloadable::NotAllowed) == Some(Remedy::Interface));
    assert!(interface(NotOffloadable::NotListed).is_none(), "VMA_XDP says so");
    assert!(interface(NotOffloadable::Down).is_none());
    assert!(WhyOs::CannotBeGivenBack.remedy() == Some(Remedy::Privileges));
    assert!(WhyOs::Ipv6.remedy() == Some(Remedy::Ipv4));
    assert!(WhyOs::FlowRefused.remedy() == Some(Remedy::Flows));
    assert!(WhyOs::Option { level: 1, name: 47 }.remedy() == Some(Remedy::Option));
    for why in [WhyOs::Passed, WhyOs::LocalDestination, WhyOs::Short, WhyOs::RingRefused] {
        assert!(why.remedy().is_none(), "{why}");
        assert!(!why.tell_remedy(format_args!("a test's socket")), "{why}");
    }
}

#[test]
fn a_remedy_is_news_once_and_each_by_itself() {
    let told = Told(AtomicU32::new(0));
    assert!(told.is_news(Remedy::Kernel));
    assert!(!told.is_news(Remedy::Kernel));
    assert!(told.is_news(Remedy::Descriptors));
}

#[test]
fn a_reason_names_what_it_is_about() {
    let option = |level, name| WhyOs::Option { level, name }.to_string();
    assert_eq!(option(6, 14), "it has TCP_MD5SIG, which only the kernel serves");
    assert_eq!(option(6, 1818), "it has option 6/1818, which only the kernel serves");
    assert_eq!(
        WhyOs::Rule(Place::Line(12)).to_string(),
        format!("of a rule ({})", Place::Line(12))
    );
    let down = NotOffloadable::Down;
    assert_eq!(WhyOs::Interface(down).to_string(), down.text());
}
