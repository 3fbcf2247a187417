//! Rates and amounts in five places.

/// Up to five characters, such as 0, 0.50, 42.1, 9999, 12.3k, 1.23M. What cannot be known is a dash.
pub fn short(number: Option<f64>) -> String {
    let Some(number) = number else { return "-".to_owned() };
    let number = number.max(0.0);
    if number == 0.0 {
        return "0".to_owned();
    }
    if number < 9999.5 {
        return match number {
            n if n < 9.995 => format!("{n:.2}"),
            n if n < 99.95 => format!("{n:.1}"),
            n => format!("{n:.0}"),
        };
    }
    let mut scaled = number;
    for unit in ["k", "M", "G", "T", "P"] {
        scaled /= 1000.0;
        // Above are the values that rounding would make one digit longer.
        match scaled {
            s if s < 9.995 => return format!("{s:.2}{unit}"),
            s if s < 99.95 => return format!("{s:.1}{unit}"),
            s if s < 999.5 => return format!("{s:.0}{unit}"),
            _ => {}
        }
    }
    "huge".to_owned()
}

/// Bytes per second as millions of them.
pub fn megabytes(bytes: Option<f64>) -> Option<f64> {
    bytes.map(|bytes| bytes / 1e6)
}

pub fn percent(share: Option<f64>, unit: &str) -> String {
    share.map_or("-".to_owned(), |share| format!("{share:.1}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_places_are_enough() {
        let said = |number| short(Some(number));
        assert_eq!(
            [0.0, 0.5, 9.994, 9.996, 42.14, 99.96, 1234.0, 9999.4].map(said),
            ["0", "0.50", "9.99", "10.0", "42.1", "100", "1234", "9999"]
        );
        assert_eq!(
            [9999.6, 12_345.0, 999_400.0, 999_600.0, 1_234_567.0, 2.5e9, 1e30].map(said),
            ["10.0k", "12.3k", "999k", "1.00M", "1.23M", "2.50G", "huge"]
        );
        let mut number = 0.001;
        while number < 1e17 {
            assert!(short(Some(number)).len() <= 5, "{number}");
            number *= 1.07;
        }
        assert_eq!(short(None), "-");
    }
}
