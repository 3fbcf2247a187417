use super::*;

/// Names as many sockets as wanted; nobody asks the shard for them.
fn id(number: u32) -> Name {
    Name::Ours(SocketId::from_bits(1 << 32 | u64::from(number)).unwrap())
}

fn ids(numbers: &[u32]) -> Vec<Name> {
    numbers.iter().map(|number| id(*number)).collect()
}

fn places(report: &Report) -> Vec<Option<Name>> {
    report.places.iter().map(|place| place.id).collect()
}

#[test]
fn a_socket_keeps_its_place_and_a_new_one_gets_the_lowest() {
    let mut report = Report::new(3);
    report.assign(&ids(&[1, 2, 3]));
    assert_eq!(places(&report), [Some(id(1)), Some(id(2)), Some(id(3))]);
    report.assign(&ids(&[3, 1]));
    assert_eq!(places(&report), [Some(id(1)), None, Some(id(3))]);
    report.assign(&ids(&[9, 3, 1, 8]));
    assert_eq!(places(&report), [Some(id(1)), Some(id(9)), Some(id(3))]);
    assert!(!report.by_id.contains_key(&id(8)), "there is no place for it");
    // It gets the first that becomes free.
    report.assign(&ids(&[9, 3, 8]));
    assert_eq!(places(&report), [Some(id(8)), Some(id(9)), Some(id(3))]);
    report.assign(&[]);
    assert!(places(&report).is_empty());
}
