//! A page of the items that a response was made from.

use serde_json::{Value, json};

use crate::error::ApiError;

/// Items of a page, where the request does not say.
const USUAL: usize = 20;
/// Items of a page at most.
const MOST: usize = 100;

/// Which page.
#[derive(Debug, Default)]
pub struct Page {
    /// The item before its first.
    after: Option<String>,
    limit: usize,
    oldest_first: bool,
}

impl Page {
    /// Reads `after`, `limit` and `order` of a query.
    ///
    /// # Errors
    /// When a value is out of its range.
    pub fn read<'q>(query: impl Iterator<Item = (&'q str, &'q str)>) -> Result<Self, ApiError> {
        let mut page = Self { limit: USUAL, ..Self::default() };
        for (name, value) in query {
            match (name, value) {
                ("after", _) => page.after = Some(value.to_owned()),
                ("order", "asc") => page.oldest_first = true,
                ("order", "desc") => page.oldest_first = false,
                ("order", _) => return Err(ApiError::field("order", "`order` must be asc or desc.")),
                ("limit", _) => {
                    let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    let message = || format!("`limit` must be between 1 and {MOST}, got {value}.");
                    page.limit = limit.ok_or_else(|| ApiError::field("limit", message()))?;
                }
                _ => {}
            }
        }
        Ok(page)
    }

    /// The page of `items`.
    ///
    /// # Errors
    /// When `after` names none of them.
    pub fn of(&self, mut items: Vec<Value>) -> Result<Value, ApiError> {
        if !self.oldest_first {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == **after);
            let at = at.ok_or_else(|| ApiError::field("after", format!("`after`: there is no item {after}.")))?;
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let (first, last) = (id(items.first()), id(items.last()));
        Ok(json!({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other() {
        let items: Vec<Value> = (0..5).map(|number| json!({"id": format!("i{number}")})).collect();
        let ids = |query: &[(&'static str, &'static str)]| {
            let page = Page::read(query.iter().copied())?.of(items.clone())?;
            let ids: Vec<String> =
                page["data"].as_array().into_iter().flatten().map(|item| item["id"].to_string()).collect();
            Ok::<_, ApiError>((ids.join(" ").replace('"', ""), page["has_more"] == true))
        };
        assert_eq!(ids(&[]), Ok(("i4 i3 i2 i1 i0".into(), false)));
        assert_eq!(ids(&[("limit", "2")]), Ok(("i4 i3".into(), true)));
        assert_eq!(ids(&[("limit", "2"), ("after", "i3")]), Ok(("i2 i1".into(), true)));
        assert_eq!(ids(&[("order", "asc"), ("after", "i3")]), Ok(("i4".into(), false)));
        for (name, value) in [("limit", "0"), ("limit", "101"), ("order", "x"), ("after", "nothing")] {
            assert_eq!(ids(&[(name, value)]).err().and_then(|error| error.param).as_deref(), Some(name));
        }
    }
}
