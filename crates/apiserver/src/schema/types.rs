//! What a CEL rule may name, and what it may compare: checked when a definition is installed, because a rule that names
//! something unknown fails for every object.
//!
//! This is a part of what the type checker of kube-apiserver does. A type that is not certain is [`Type::Any`], about
//! which nothing is said.

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};
use kube_cel::cel::{Context, ExecutionError, Program};
use serde_json::Value;

/// Names of types, which are values in CEL.
const TYPE_NAMES: [&str; 10] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];
const COMPARISONS: [&str; 6] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
];
/// Functions of the language that the evaluator lacks. A rule with them may still hold, by its other half.
const STANDARD: [&str; 2] = ["type", "dyn"];
/// Functions of a text or a list whose result is certain.
const RESULTS: [(&str, Type<'static>); 5] = [
    ("size", Type::Number("int")),
    ("startsWith", Type::Bool),
    ("endsWith", Type::Bool),
    ("contains", Type::Bool),
    ("matches", Type::Bool),
];

thread_local! {
    static FUNCTIONS: Context<'static> = Context::default().with_all();
}

#[derive(Debug, Clone, PartialEq)]
enum Type<'s> {
    Any,
    Bool,
    /// Numbers can be compared with each other.
    Number(&'static str),
    Text,
    List(Box<Type<'s>>),
    Map(Box<Type<'s>>),
    /// An object of this schema, which has properties.
    Object(&'s Value),
}

/// Why a rule on `schema` cannot be used, if its text can be parsed at all.
pub(super) fn problem(rule: &str, schema: &Value) -> Option<String> {
    let program = Program::compile(rule).ok()?;
    let own = Type::of(schema);
    let scope = Scope { names: vec![("self", own.clone()), ("oldSelf", own)] };
    match scope.of(program.expression()) {
        Err(why) => Some(why),
        Ok(Type::Any | Type::Bool) => None,
        Ok(_) => Some("must evaluate to a bool".to_owned()),
    }
}

/// Why a message cannot be used.
pub(super) fn message_problem(expression: &str, schema: &Value) -> Option<String> {
    let program = Program::compile(expression).ok()?;
    let own = Type::of(schema);
    let scope = Scope { names: vec![("self", own.clone()), ("oldSelf", own)] };
    match scope.of(program.expression()) {
        Err(why) => Some(why),
        Ok(Type::Any | Type::Text) => None,
        Ok(_) => Some("must evaluate to a string".to_owned()),
    }
}

impl<'s> Type<'s> {
    fn of(schema: &'s Value) -> Self {
        if schema["nullable"] == true || schema["x-kubernetes-int-or-string"] == true {
            return Type::Any;
        }
        match (schema["type"].as_str().unwrap_or_default(), schema["format"].as_str().unwrap_or_default()) {
            ("boolean", _) => Type::Bool,
            ("integer", _) => Type::Number("int"),
            ("number", _) => Type::Number("double"),
            ("string", "byte" | "date" | "date-time" | "datetime" | "duration") => Type::Any,
            ("string", _) => Type::Text,
            ("array", _) => Type::List(Box::new(Type::of(&schema["items"]))),
            ("object", _) if schema["properties"].is_object() => Type::Object(schema),
            ("object", _) if schema["additionalProperties"].is_object() => {
                Type::Map(Box::new(Type::of(&schema["additionalProperties"])))
            }
            _ => Type::Any,
        }
    }

    fn name(&self) -> Option<&'static str> {
        match self {
            Type::Bool => Some("bool"),
            Type::Number(name) => Some(name),
            Type::Text => Some("string"),
            Type::Any | Type::List(_) | Type::Map(_) | Type::Object(_) => None,
        }
    }

    /// Whether values can be equal, or be ordered.
    fn compares(&self, other: &Self) -> bool {
        match (self, other) {
            (Type::Number(_), Type::Number(_)) => true,
            _ => self.name().is_none() || other.name().is_none() || self.name() == other.name(),
        }
    }

    fn field(&self, name: &str) -> Result<Type<'s>, String> {
        match self {
            Type::Any => Ok(Type::Any),
            Type::Map(values) => Ok((**values).clone()),
            Type::Object(schema) => {
                let found = &schema["properties"][name];
                let open = schema["x-kubernetes-preserve-unknown-fields"] == true
                    || schema["x-kubernetes-embedded-resource"] == true
                    || !schema["additionalProperties"].is_null()
                    || matches!(name, "apiVersion" | "kind" | "metadata")
                    // Names that are no CEL identifiers are written with underscores.
                    || name.contains("__");
                match found {
                    Value::Null if open => Ok(Type::Any),
                    Value::Null => Err(format!("undefined field '{name}'")),
                    // Of metadata a schema says less than there is.
                    _ if name == "metadata" => Ok(Type::Any),
                    found => Ok(Type::of(found)),
                }
            }
            Type::Bool | Type::Number(_) | Type::Text | Type::List(_) => {
                Err(format!("type does not support field selection: '{name}'"))
            }
        }
    }
}

/// The variables of an expression with their types. Later ones hide earlier ones.
#[derive(Clone)]
struct Scope<'e, 's> {
    names: Vec<(&'e str, Type<'s>)>,
}

impl<'e, 's> Scope<'e, 's> {
    fn of(&self, expression: &'e IdedExpr) -> Result<Type<'s>, String> {
        match &expression.expr {
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let field = self.of(&select.operand)?.field(&select.field)?;
                Ok(if select.test { Type::Bool } else { field })
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let mut items = list.elements.iter().map(|item| self.of(item));
                let first = items.next().transpose()?.unwrap_or(Type::Any);
                let same = items.collect::<Result<Vec<_>, _>>()?.iter().all(|item| *item == first);
                Ok(Type::List(Box::new(if same { first } else { Type::Any })))
            }
            Expr::Map(map) => self.entries(map.entries.iter().map(|entry| &entry.expr)),
            Expr::Struct(object) => self.entries(object.entries.iter().map(|entry| &entry.expr)),
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Int(_) => Type::Number("int"),
                LiteralValue::UInt(_) => Type::Number("uint"),
                LiteralValue::Double(_) => Type::Number("double"),
                LiteralValue::String(_) => Type::Text,
                LiteralValue::Bytes(_) | LiteralValue::Null => Type::Any,
            }),
            Expr::Unspecified => Ok(Type::Any),
        }
    }

    fn variable(&self, name: &str) -> Result<Type<'s>, String> {
        let found = self.names.iter().rev().find(|(known, _)| *known == name).map(|(_, kind)| kind.clone());
        let other = || TYPE_NAMES.contains(&name).then_some(Type::Any);
        found.or_else(other).ok_or_else(|| format!("undeclared reference to '{name}'"))
    }

    fn entries(&self, entries: impl Iterator<Item = &'e EntryExpr>) -> Result<Type<'s>, String> {
        for entry in entries {
            match entry {
                EntryExpr::StructField(field) => drop(self.of(&field.value)?),
                EntryExpr::MapEntry(entry) => drop((self.of(&entry.key)?, self.of(&entry.value)?)),
            }
        }
        Ok(Type::Any)
    }

    fn comprehension(&self, it: &'e ComprehensionExpr) -> Result<Type<'s>, String> {
        let item = match self.of(&it.iter_range)? {
            Type::List(items) => *items,
            Type::Map(_) => Type::Text,
            Type::Any | Type::Object(_) => Type::Any,
            Type::Bool | Type::Number(_) | Type::Text => {
                return Err("expression cannot be the range of a comprehension".to_owned());
            }
        };
        self.of(&it.accu_init)?;
        let mut inner = self.clone();
        match &it.iter_var2 {
            None => inner.names.push((&it.iter_var, item)),
            Some(second) => inner.names.extend([(&*it.iter_var, Type::Any), (&**second, Type::Any)]),
        }
        inner.names.push((&it.accu_var, Type::Any));
        inner.of(&it.loop_cond)?;
        inner.of(&it.loop_step)?;
        inner.of(&it.result)
    }

    fn call(&self, call: &'e CallExpr) -> Result<Type<'s>, String> {
        let name = call.func_name.as_str();
        let namespace = call.target.as_deref().and_then(|target| match &target.expr {
            Expr::Ident(space) if self.variable(space).is_err() => Some(space.as_str()),
            _ => None,
        });
        if let (None, Some(target)) = (namespace, &call.target) {
            self.of(target)?;
        }
        let arguments = call.args.iter().map(|it| self.of(it)).collect::<Result<Vec<_>, _>>()?;
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        match (name, &arguments[..]) {
            (_, [left, right]) if COMPARISONS.contains(&name) => match (left.name(), right.name()) {
                (Some(one), Some(two)) if !left.compares(right) => {
                    Err(format!("found no matching overload for '{name}' applied to '({one}, {two})'"))
                }
                _ => Ok(Type::Bool),
            },
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, arguments) => {
                match arguments.iter().find(|it| !it.compares(&Type::Bool)) {
                    Some(other) => {
                        Err(format!("expected type 'bool' but found '{}'", other.name().unwrap_or_default()))
                    }
                    None => Ok(Type::Bool),
                }
            }
            (operators::CONDITIONAL, [_, one, two]) if one == two => Ok(one.clone()),
            (operators::ADD, [Type::Text, Type::Text]) => Ok(Type::Text),
            (operators::ADD | operators::SUBSTRACT | operators::MULTIPLY, [one @ Type::Number(_), two])
                if one == two =>
            {
                Ok(one.clone())
            }
            (operators::IN, _) => Ok(Type::Bool),
            (operators::INDEX, [Type::List(items) | Type::Map(items), _]) => Ok((**items).clone()),
            _ if is_operator => Ok(Type::Any),
            _ if !is_function(namespace, name) => match namespace {
                Some(space) if space.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                    Err(format!("undeclared reference to '{space}'"))
                }
                _ => Err(format!("undeclared reference to '{name}'")),
            },
            _ if namespace.is_some() => Ok(Type::Any),
            _ => Ok(RESULTS.iter().find(|(known, _)| *known == name).map_or(Type::Any, |(_, it)| it.clone())),
        }
    }
}

/// Whether the evaluator has a function of this name. It is asked, since it has no list.
fn is_function(namespace: Option<&str>, name: &str) -> bool {
    if namespace.is_none() && STANDARD.contains(&name) {
        return true;
    }
    let text = namespace.map_or_else(|| format!("{name}()"), |space| format!("{space}.{name}()"));
    let Ok(program) = Program::compile(&text) else { return true };
    let unknown = |of: &str| of == name || Some(of) == namespace;
    let answer = FUNCTIONS.with(|functions| program.execute(functions));
    !matches!(answer, Err(ExecutionError::UndeclaredReference(of)) if unknown(&of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        let text = json!({ "type": "string" });
        json!({ "type": "object", "properties": {
            "x": text, "n": { "type": "integer" }, "f": { "type": "number" }, "b": { "type": "boolean" },
            "t": { "type": "string", "format": "date-time" }, "any": { "x-kubernetes-int-or-string": true },
            "o": { "type": "object", "properties": { "p": text } },
            "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "l": { "type": "array", "items": { "type": "object", "properties": { "k": text } } },
            "m": { "type": "object", "additionalProperties": text },
        } })
    }

    #[test]
    fn rules_that_name_or_compare_wrongly_are_found() {
        for (rule, wanted) in [
            ("slef.n > 1", "undeclared reference to 'slef'"),
            ("self.x.matchez('a')", "undeclared reference to 'matchez'"),
            ("matchez(self.x)", "undeclared reference to 'matchez'"),
            ("maths.abs(self.n) > 1", "undeclared reference to 'maths'"),
            ("self.gone == 1", "undefined field 'gone'"),
            ("self.o.gone == 'a'", "undefined field 'gone'"),
            ("has(self.o.gone)", "undefined field 'gone'"),
            ("self.l.all(i, i.gone == 'a')", "undefined field 'gone'"),
            ("self.l.all(i, j.k == 'a')", "undeclared reference to 'j'"),
            ("self.l[0].gone == 'a'", "undefined field 'gone'"),
            ("oldSelf.gone == 1", "undefined field 'gone'"),
            ("self.x.y == 'a'", "type does not support field selection: 'y'"),
            ("self.n > 'a'", "found no matching overload for '_>_' applied to '(int, string)'"),
            ("self.m['a'] == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
            ("self.b && self.x", "expected type 'bool' but found 'string'"),
            ("self.x", "must evaluate to a bool"),
            ("self.x.size()", "must evaluate to a bool"),
            ("self.n.all(i, true)", "expression cannot be the range of a comprehension"),
        ] {
            assert_eq!(problem(rule, &schema()).as_deref(), Some(wanted), "{rule}");
        }
        assert_eq!(
            message_problem("'a' + slef.x", &schema()).as_deref(),
            Some("undeclared reference to 'slef'")
        );
        assert_eq!(message_problem("self.n", &schema()).as_deref(), Some("must evaluate to a string"));
    }

    #[test]
    fn rules_of_all_kinds_are_left_alone() {
        for rule in [
            "self.x.matches('^a') && !self.b",
            "!has(self.o) || !has(self.o.p) || self.o.p.size() > 1",
            "self.l.all(i, i.k != 'a' && i.k.startsWith('b'))",
            "self.l.exists(i, i.k == 'a') || self.l.exists_one(i, i.k == 'b')",
            "self.l.map(i, i.k).all(k, k in ['a'])",
            "self.l.filter(i, i.k == 'a').size() == 1",
            "self.m.all(k, self.m[k] == 'x' && self.m.a == k)",
            "self.n >= oldSelf.n && self.f > self.n && self.n > 1.5",
            "size(self.x) < 5 && self.x.lowerAscii() == self.x",
            "self.x.split(',').size() < 3 && int(self.x) > 1 && string(self.n) == '1'",
            "isURL(self.x) && url(self.x).getHost() == 'a'",
            "quantity('1Gi').isGreaterThan(quantity('1Mi'))",
            "duration('1h') > duration('1m') && timestamp('2026-01-01T00:00:00Z').getFullYear() > 2000",
            "self.t > timestamp('2026-01-01T00:00:00Z')",
            "self.any == 'a' || self.any == 1 || type(self.any) == int",
            "self.free.a.b == 1 && self.free.size() > 0",
            "self.metadata.name == 'a' && self.kind == 'A'",
            "self.?o.?p.orValue('') == ''",
            "optional.of(self.x).orValue('') == ''",
            "sets.contains(['a'], [self.x]) && math.greatest(1, self.n) == 1",
            "self.some__dot__name == 1",
            "self.o == oldSelf.o && self == oldSelf",
            "self.l.isSorted() || self.l.indexOf(self.l[0]) == 0",
            "ip.isCanonical('1.2.3.4') && cidr('10.0.0.0/8').containsIP('10.1.1.1')",
            "self.n == 1 ? true : self.x.find('[0-9]+') == ''",
            "dyn(self.n) == 'a'",
        ] {
            assert_eq!(problem(rule, &schema()), None, "{rule}");
        }
        assert_eq!(message_problem("'a ' + self.x + string(self.n)", &schema()), None);
    }
}
