//! Which kernel this is.

use super::{Check, State};

/// The oldest kernel that has all that is used: `pidfd_getfd` came with 5.6, the last of it.
const OLDEST: (u32, u32) = (5, 6);

pub(super) fn version() -> Check {
    let uname = rustix::system::uname();
    let (system, release) = (uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
    let found = format!("{system} {release}, {}", uname.machine().to_string_lossy());
    match parse(&release) {
        Some(version) if version >= OLDEST => Check::new("kernel", State::Good, found),
        Some(_) => Check::new("kernel", State::Limited, found)
            .remedy(format!("kvshare is made for Linux {}.{} and later; update it", OLDEST.0, OLDEST.1)),
        None => Check::new("kernel", State::Limited, format!("{found}, a version that is not understood")),
    }
}

/// The first two numbers of a release such as `6.12.57+deb13-amd64`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        for (release, version) in
            [("6.12.57+deb13-amd64", Some((6, 12))), ("5.6", Some((5, 6))), ("x", None), ("6", None)]
        {
            assert_eq!(parse(release), version, "{release}");
        }
    }
}
