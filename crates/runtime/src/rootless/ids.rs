//! Which ids a user may have besides their own, from the files that say so. Pure.

use std::path::PathBuf;

use asb_supervisor::launch::IDS;

/// Ids of a new namespace, and the programs that the kernel lets give them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maps {
    pub uid: Map,
    pub gid: Map,
}

/// Id 0 is the user's own, those from 1 on are subordinate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    pub program: PathBuf,
    pub own: u32,
    pub subordinate: u32,
}

impl Map {
    /// What the program is told after the process: inside, outside and how many, of each piece.
    pub fn arguments(&self) -> [String; 6] {
        [0, self.own, 1, 1, self.subordinate, IDS].map(|number| number.to_string())
    }
}

/// Why there is only one id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    #[error("{0} is not installed: install the package `uidmap`")]
    Program(&'static str),
    #[error(
        "{file} gives {user} no {IDS} ids in a row: as root, `usermod --add-subuids 1000000-1065535 \
         --add-subgids 1000000-1065535 {user}`, with numbers that are nobody else's"
    )]
    Range { file: &'static str, user: String },
}

/// What the files give to a user, who may be named there or numbered.
pub fn maps(
    user: u32,
    group: u32,
    passwd: &str,
    subuid: &str,
    subgid: &str,
    programs: [Option<PathBuf>; 2],
) -> Result<Maps, Lack> {
    let name = name(passwd, user);
    let range = |file, text| {
        let lack = || Lack::Range { file, user: name.map_or_else(|| user.to_string(), str::to_owned) };
        range(text, user, name).ok_or_else(lack)
    };
    let [newuidmap, newgidmap] = programs;
    let uid = Map {
        program: newuidmap.ok_or(Lack::Program("newuidmap"))?,
        own: user,
        subordinate: range("/etc/subuid", subuid)?,
    };
    let gid = Map {
        program: newgidmap.ok_or(Lack::Program("newgidmap"))?,
        own: group,
        subordinate: range("/etc/subgid", subgid)?,
    };
    Ok(Maps { uid, gid })
}

/// What an id is called outside the namespace with this map.
pub fn outside(map: &str, id: u32) -> u32 {
    let extent = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        let (first, outside, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let offset = id.checked_sub(first).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    };
    map.lines().find_map(extent).unwrap_or(id)
}

fn name(passwd: &str, user: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then_some(name)
    })
}

/// The first of a range that is long enough: lines are `NAME-OR-NUMBER:FIRST:COUNT`, also of groups' files.
fn range(text: &str, user: u32, name: Option<&str>) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let of = fields.next()?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_ours = Some(of) == name || of.parse() == Ok(user);
        (is_ours && count >= IDS && first.checked_add(IDS).is_some()).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbob:x:1001:100:::\n";

    fn maps_of(user: u32, subuid: &str, programs: [Option<&str>; 2]) -> Result<Maps, Lack> {
        maps(
            user,
            100,
            PASSWD,
            subuid,
            "ann:7:65536\n1001:300000:70000\n",
            programs.map(|it| it.map(PathBuf::from)),
        )
    }

    #[test]
    fn range_is_found_by_name_or_number() {
        let both = [Some("/bin/newuidmap"), Some("/bin/newgidmap")];
        let ann = maps_of(1000, "bob:1:65536\nann:5:10\nann:100000:65536\n", both).expect("has ids");
        assert_eq!(ann.uid.arguments(), ["0", "1000", "1", "1", "100000", "65536"]);
        assert_eq!(ann.gid.arguments(), ["0", "100", "1", "1", "7", "65536"]);
        let bob = maps_of(1001, "1001:200000:65536", both).expect("has ids");
        assert_eq!((bob.uid.subordinate, bob.gid.subordinate), (200_000, 300_000));
    }

    #[test]
    fn ids_are_found_outside() {
        let map = "0 1000 1\n1 100000 65536\n";
        assert_eq!((outside(map, 0), outside(map, 7), outside("0 0 4294967295", 5)), (1000, 100_006, 5));
    }

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        let both = [Some("/bin/newuidmap"), Some("/bin/newgidmap")];
        let lack = |of: Result<Maps, Lack>| of.expect_err("lacks something").to_string();
        let none = lack(maps_of(1000, "ann:100000:65535\nann:4294967000:65536\n", both));
        assert!(none.starts_with("/etc/subuid gives ann no 65536 ids") && none.contains("usermod"), "{none}");
        let program = lack(maps_of(1000, "ann:100000:65536\n", [Some("/bin/newuidmap"), None]));
        assert_eq!(program, "newgidmap is not installed: install the package `uidmap`");
        assert!(lack(maps_of(4711, "", both)).contains("gives 4711 no"));
    }
}
