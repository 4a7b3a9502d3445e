//! Users and groups of an image, from its `/etc/passwd` and `/etc/group`. Pure.

/// The two files, as far as they matter. Empty when the image has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    users: Vec<User>,
    groups: Vec<Group>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

/// Who a process is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// `None`: nobody says where it is.
    pub home: Option<String>,
}

impl Users {
    /// From the text of `/etc/passwd` and `/etc/group`. Lines that are none are passed over.
    pub fn parse(passwd: &str, group: &str) -> Self {
        let user = |line: &str| {
            let fields: Vec<_> = line.split(':').collect();
            let (name, home) = (fields.first()?.to_string(), fields.get(5)?.to_string());
            Some(User { name, uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()?, home })
        };
        let group_of = |line: &str| {
            let fields: Vec<_> = line.split(':').collect();
            let members = fields.get(3).map_or("", |members| members).split(',');
            let members = members.filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Some(Group { name: fields.first()?.to_string(), gid: fields.get(2)?.parse().ok()?, members })
        };
        Self {
            users: passwd.lines().filter_map(user).collect(),
            groups: group.lines().filter_map(group_of).collect(),
        }
    }

    /// Reads `USER` or `USER:GROUP`, each a name or a number; empty is root.
    pub fn find(&self, text: &str) -> Result<Identity, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let known = self.users.iter().find(|it| it.name == user);
        let mut identity = match (known, user.parse()) {
            (Some(known), _) => self.of(known),
            (None, Ok(uid)) => self.by_id(uid),
            (None, Err(_)) if user.is_empty() => self.by_id(0),
            (None, Err(_)) => return Err(format!("the image has no user {user:?} in /etc/passwd")),
        };
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            let known = self.groups.iter().find(|it| it.name == group).map(|it| it.gid);
            identity.gid = known
                .or_else(|| group.parse().ok())
                .ok_or_else(|| format!("the image has no group {group:?} in /etc/group"))?;
        }
        Ok(identity)
    }

    /// A user by number, who need not be in the list.
    pub fn by_id(&self, uid: u32) -> Identity {
        match self.users.iter().find(|it| it.uid == uid) {
            Some(known) => self.of(known),
            None => Identity { uid, ..Identity::default() },
        }
    }

    fn of(&self, user: &User) -> Identity {
        let member = |group: &&Group| group.gid != user.gid && group.members.contains(&user.name);
        let groups = self.groups.iter().filter(member).map(|group| group.gid).collect();
        let home = Some(user.home.clone()).filter(|home| home.starts_with('/'));
        Identity { uid: user.uid, gid: user.gid, groups, home }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# comment\nweb:x:33:34:www:/var/www:/bin/sh\nbroken:x\n";
        Users::parse(passwd, "root:x:0:\nweb:x:34:\nlog:x:4:web,other\naudio:x:29:other\n")
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let web = Identity { uid: 33, gid: 34, groups: vec![4], home: Some("/var/www".into()) };
        for text in ["web", "33"] {
            assert_eq!(users().find(text), Ok(web.clone()), "{text}");
        }
        assert_eq!(users().find("").map(|it| (it.uid, it.home)), Ok((0, Some("/root".into()))));
        assert_eq!(users().find("web:audio").map(|it| it.gid), Ok(29));
        assert_eq!(users().find("7:8"), Ok(Identity { uid: 7, gid: 8, ..Identity::default() }));
        assert_eq!(Users::default().find("").map(|it| (it.uid, it.gid)), Ok((0, 0)));
    }

    #[test]
    fn unknown_names_are_named() {
        assert!(users().find("nobody").is_err_and(|message| message.contains("nobody")));
        assert!(users().find("web:staff").is_err_and(|message| message.contains("staff")));
    }
}
