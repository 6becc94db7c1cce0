-- Expressions over the columns of tests/support/expressions.py, which Spark computes, too: one a line.
n + 1
n + k
n - k
n * k
i + j
i * j
h + y
y * y
n / k
n div k
n % k
-n
-i
-d
x + z
x - z
x * z
x / z
x % z
d + c
d - c
d * c
d / c
d % c
d div c
e + d
e * e
e / d
e - c
e % c
d + 1
d * n
n * d
d + x
f + f
f * x
f + n
i + x
d = c
d < n
x = z
x < z
x > z
x <= z
x >= z
x != z
x <=> z
f = x
n = i
s = t
s < t
s > 'a'
b = g
b < g
b and g
b or g
not b
b is true
b is not false
n is null
n is not null
n between 0 and k
n in (1, 7, null)
x in (1, cast('NaN' as double))
s in ('a','abc')
n not in (1,2)
s = 'a' or n / k > 1
coalesce(n, k, 0)
if(b, n, d)
case when n > 0 then 'pos' when n < 0 then 'neg' end
case i when 1 then 'one' when 5 then 'five' else s end
nullif(n, k)
nvl2(s, n, k)
nvl(s,'none')
n <=> k
day < day2
day = at
at > at2
at = local
u = u
u < cast('b' as binary)
p = p2
p < p2
a = a2
a < a2
lap > interval '1' day
cast(n as int)
cast(n as smallint)
cast(n as tinyint)
cast(n as double)
cast(n as float)
cast(n as decimal(20,2))
cast(n as decimal(5,1))
cast(n as string)
cast(n as boolean)
cast(n as timestamp)
cast(x as int)
cast(x as bigint)
cast(x as float)
cast(x as decimal(20,5))
cast(x as decimal(38,18))
cast(x as string)
cast(x as boolean)
cast(x as timestamp)
cast(f as string)
cast(f as double)
cast(f as int)
cast(f as decimal(10,3))
cast(d as int)
cast(d as double)
cast(d as float)
cast(d as decimal(5,1))
cast(d as string)
cast(d as boolean)
cast(d as timestamp)
cast(e as double)
cast(e as string)
cast(e as bigint)
cast(s as int)
cast(s as bigint)
cast(s as double)
cast(s as float)
cast(s as decimal(10,2))
cast(s as boolean)
cast(s as date)
cast(s as timestamp)
cast(s as timestamp_ntz)
cast(s as binary)
cast(b as int)
cast(b as string)
cast(b as double)
cast(b as decimal(3,1))
cast(day as string)
cast(day as timestamp)
cast(day as timestamp_ntz)
cast(at as date)
cast(at as string)
cast(at as bigint)
cast(at as double)
cast(at as decimal(20,6))
cast(at as timestamp_ntz)
cast(at as int)
cast(local as timestamp)
cast(local as string)
cast(local as date)
cast(a as string)
cast(w as string)
cast(m as string)
cast(p as string)
cast(a as array<string>)
cast(a as array<double>)
cast(w as array<int>)
cast(m as map<string,string>)
cast(p as struct<a:bigint,b:string>)
try_cast(s as int)
try_cast(s as double)
try_cast(s as date)
try_cast(s as timestamp)
try_cast(n as int)
try_cast(s as boolean)
try_cast(w as array<int>)
try_cast(x as decimal(5,2))
try_add(n, k)
try_subtract(n,k)
try_multiply(n,k)
try_divide(n,k)
try_mod(n,k)
try_add(d,c)
try_divide(d,c)
mod(n,k)
abs(n)
abs(x)
abs(d)
negative(n)
positive(d)
s like 'a%'
s like '%b%'
s like '_b_'
s not like 'a%'
s like '100\\%\\_'
s ilike 'A%'
s like any ('a%','%c')
s rlike '^a'
s rlike '[0-9]+'
s || t
s || n
n || d
isnan(x)
s like '%b' escape '/'
p.x
p.y
p.x + n
a[0]
a[j]
m['a']
m[t]
upper(s)
lower(s)
ucase(t)
initcap(s)
length(s)
length(u)
char_length(s)
octet_length(s)
bit_length(s)
concat(s,t)
concat(s,'-',n)
concat_ws(',',s,t)
concat_ws(',',w,t)
concat_ws(t,s,s)
trim(s)
ltrim(s)
rtrim(s)
btrim(s)
trim('a',s)
trim(both 'a ' from s)
ltrim('a',s)
rtrim('c',s)
btrim(s,'ac')
lpad(s,5,'xy')
rpad(s,5,'xy')
rpad(s,j)
substring(s,1,2)
substring(s,j,2)
substring(s,j)
substring(u,2,1)
substr(s,-3)
substring(s from 2 for 3)
left(s,2)
right(s,2)
left(s,j)
right(s,j)
substring_index(s,' ',1)
substring_index(s,',',-2)
substring_index(s,',',2)
substring_index(s,t,1)
instr(s,'b')
instr(s,t)
locate(t,s)
locate('a',s,j)
position('l' in s)
contains(s,t)
startswith(s,t)
endswith(s,t)
replace(s,'a','ZZ')
replace(s,t,'-')
replace(s,'a')
translate(s,'abÄ','xy')
repeat(s,j)
repeat(t,3)
space(j)
ascii(s)
chr(n)
chr(k)
split(s,',')
split(s,',',2)
split(s,'[abc]')
split_part(s,',',k)
split_part(s,'.',1)
find_in_set(t,'a,b,,World')
overlay(s placing 'ZZ' from 2)
overlay(s,t,2,1)
overlay(s,t,j,0)
hex(n)
hex(s)
hex(u)
bin(n)
reverse(s)
reverse(a)
regexp_replace(s,'[aeiou]','<$0>')
regexp_replace(s,'(l+)(o)','$2$1')
regexp_count(s,'[a-c]')
regexp_extract(s,'([a-z]+) ([A-Z])',1)
regexp_extract(s,'(\\d+)',1)
regexp_extract(s,'(b)?',1)
regexp_substr(s,'[0-9]+')
s rlike '\\d'
s rlike '.e.*o'
s rlike '^$'
s rlike '\\s'
sin(x)
cos(k)
tan(k)
asin(x)
acos(x)
atan(x)
sinh(k)
cosh(k)
tanh(x)
asinh(k)
acosh(k)
atanh(x)
sqrt(x)
cbrt(x)
exp(k)
expm1(k)
ln(x)
log(x)
log2(x)
log10(x)
log1p(x)
log(k,x)
pow(x,z)
power(k,j)
atan2(x,z)
hypot(x,z)
pi()
e()
degrees(x)
radians(x)
rint(x)
sign(x)
sign(d)
signum(n)
cot(k)
sec(k)
csc(k)
abs(i)
abs(f)
factorial(k)
round(x)
round(x,2)
round(x,-2)
round(f,1)
round(d)
round(d,1)
round(n,-2)
round(i,-1)
round(e,3)
bround(x,1)
bround(d,1)
bround(x)
ceil(x)
ceil(d)
ceil(n)
ceil(d,1)
floor(x)
floor(d)
floor(d,1)
floor(n,-1)
ceil(x,1)
ceiling(e)
n & k
n | k
n ^ k
~n
i & j
shiftleft(i,j)
shiftright(n,j)
shiftrightunsigned(n,j)
shiftrightunsigned(i,j)
n << 2
n >> 1
bit_count(n)
bit_count(b)
bit_get(n,3)
pmod(n,k)
pmod(d,c)
pmod(x,z)
greatest(n,k)
greatest(x,z)
least(x,z,1)
least(s,t)
greatest(d,n)
nanvl(x,z)
width_bucket(x,0,10,5)
width_bucket(k,10,0,4)
lpad(s,j,'ä')
year(day)
year(at)
quarter(day)
month(day)
day(day)
dayofmonth(at)
dayofweek(day)
weekday(day)
dayofyear(day)
weekofyear(day)
hour(at)
minute(at)
second(at)
hour(local)
dayname(day)
monthname(day)
date_add(day,j)
date_sub(day,j)
date_add(at,1)
datediff(day,day2)
date_diff(day,day2)
add_months(day,j)
last_day(day)
next_day(day,'MON')
next_day(day,'sunday')
trunc(day,'MM')
trunc(day,'year')
trunc(day,'week')
trunc(day,'quarter')
trunc(day,'x')
date_trunc('month',at)
date_trunc('hour',at)
date_trunc('week',at)
date_trunc('quarter',local)
date_trunc('day',day)
date_trunc('MICROSECOND',at)
months_between(day,day2)
months_between(at,at2)
months_between(at,at2,false)
unix_seconds(at)
unix_millis(at)
unix_micros(at)
timestamp_seconds(k)
timestamp_seconds(x)
timestamp_millis(n)
timestamp_micros(n)
unix_date(day)
date_from_unix_date(j)
make_date(2024,j,k)
make_date(j,1,1)
make_timestamp(2024,k,1,j,0,c)
from_utc_timestamp(at,'Europe/Berlin')
to_utc_timestamp(at,'America/New_York')
from_utc_timestamp(at,'+02:00')
convert_timezone('UTC','Asia/Tokyo',local)
extract(year from day)
extract(second from at)
extract(dow from day)
extract(week from day)
extract(dow_iso from day)
extract(yearofweek from day)
date_part('hour',at)
datepart('month',day)
day + 1
day - 1
1 + day
day - day2
at - at2
day - at
day + interval '1' day
day - interval '2' week
day + interval '1' month
day + interval '1' hour
at + interval '1' month
at - interval '1' year
at + interval '1 02:03:04.5' day to second
interval '1' day + day
lap + interval '1' hour
lap * 2
lap / 3
at + lap
day + lap
at - lap
-lap
timestampadd(month,j,at)
timestampadd(hour,j,at)
dateadd(day,j,at)
date_add(month,1,at)
timestampdiff(month,at,at2)
timestampdiff(day,at,at2)
timestampdiff(hour,at,at2)
datediff(year,at,at2)
timestampdiff(quarter,at2,at)
to_date(s)
try_to_date(s)
to_timestamp('2024-01-01 10:00:00')
date(s)
timestamp(day)
int(d)
string(n)
double(n)
date '2024-01-01' < day
timestamp '2024-01-01 00:00:00' < at
typeof(d)
size(a)
size(m)
cardinality(a)
array(n,k,1)
array(s,n)
map('a',n)
map(t,n)
struct(n,s as q)
named_struct('a',n,'b',s)
element_at(a,1)
element_at(a,j)
element_at(a,-1)
try_element_at(a,j)
get(a,j)
element_at(m,'a')
element_at(m,t)
try_element_at(m,t)
array_contains(a,1)
array_contains(a,j)
array_contains(w,t)
array_position(a,1)
array_position(w,t)
array_remove(a,1)
array_compact(a)
array_distinct(a)
array_union(a,a2)
array_intersect(a,a2)
array_except(a,a2)
arrays_overlap(a,a2)
concat(a,a2)
a || a2
array_append(a,j)
array_prepend(a,j)
array_repeat(s,j)
array_repeat(n,2)
array_join(w,',')
array_join(w,',','-')
array_join(a,'|')
array_max(a)
array_min(a)
array_max(w)
sort_array(a)
sort_array(a,false)
array_sort(a)
sort_array(w)
slice(a,1,2)
slice(a,j,1)
slice(a,-2,2)
flatten(array(a,a2))
sequence(1,k)
sequence(k,j)
sequence(0,10,k)
map_keys(m)
map_values(m)
map_entries(m)
map_contains_key(m,t)
map_from_arrays(array('a','b'),array(n,k))
map_from_entries(array(struct(n,s)))
map_concat(m,map('zz',1))
str_to_map('a:1,b:2')
str_to_map(s)
transform(a, x -> x + 1)
transform(a, (x, i) -> x * i)
transform(w, q -> q || s)
filter(a, x -> x > 1)
filter(a, (x, i) -> i > 0)
exists(a, x -> x > 1)
exists(a, x -> x is null)
forall(a, x -> x > 0)
aggregate(a, 0L, (acc, x) -> acc + x)
aggregate(a, 0, (acc, x) -> acc + coalesce(x, 0), acc -> acc * 10)
reduce(w, '', (acc, x) -> concat(acc, x))
transform(array(a,a2), r -> size(r))
transform(array(a,a2), r -> transform(r, x -> x + n))
equal_null(n,k)
nullifzero(n)
zeroifnull(n)
decode(k,1,'one',2,'two','many')
decode(k,1,'one')
array(p,p2).x
s is distinct from t
b = true and s in ('a')
case when s like 'a%' then upper(s) else lower(t) end
n > 0 and 10 / n > 1
k = 0 or n / k > 1
if(k = 0, null, n / k)
make_timestamp(2024,1,1,1,1,c)
date_trunc('day',at)
at + interval '1' day
timestampadd(day,j,at)
at - day
to_utc_timestamp(at,'Asia/Tokyo')
from_utc_timestamp(at,'Asia/Tokyo')
last_day(at)
extract(hour from at)
make_timestamp(2024,3,31,2,30,0)
timestamp '2024-03-31 02:30:00' < at
coalesce(at,at2)
to_date(at)
cast('2024-07-01 12:00:00' as timestamp)
concat_ws(',',s)
concat_ws(',')
concat_ws(t,w,w,n)
date_format(at,'yyyy-MM-dd HH:mm:ss.SSS')
date_format(day,'E EEEE MMM MMMM d D yy y')
date_format(at,'h a K k')
date_format(at,'yyyyMMdd\'T\'HHmm')
to_date('03.02.2024','dd.MM.yyyy')
to_date('3.2.2024','d.M.yyyy')
to_date(s,'yyyy-MM-dd')
try_to_date(s,'yyyy-MM-dd')
to_timestamp('2024-02-03 14','yyyy-MM-dd HH')
to_date('24-02-03','yy-MM-dd')
unix_timestamp(at)
unix_timestamp(day)
unix_timestamp('2024-02-03','yyyy-MM-dd')
unix_timestamp('2024-02-03 01:02:03')
to_unix_timestamp(at)
from_unixtime(k)
from_unixtime(n,'yyyy')
to_date('Feb 3 2024','MMM d yyyy')
try_to_timestamp(s,'yyyy-MM-dd HH:mm:ss.SSS')
to_timestamp_ntz('2024-02-03 14','yyyy-MM-dd HH')
to_timestamp('02/03/2024 2:05 PM','MM/dd/yyyy h:mm a')
from_unixtime(i)
array_size(a)
bigint(d)
binary(s)
boolean(n)
char(k)
character_length(s)
float(d)
getbit(n,1)
ifnull(n,0)
ilike(s,'A%')
isnotnull(s)
isnull(s)
lcase(s)
len(s)
like(s,'a%')
make_timestamp_ltz(2024,1,1,1,1,c)
make_timestamp_ntz(2024,1,1,1,1,c)
regexp(s,'^a')
regexp_like(s,'^a')
rlike(s,'b')
smallint(n)
tinyint(n)
to_timestamp_ltz('2024-01-01 10:00:00')
round(c,1)
round(d,2)
nanvl(x, 1 / k)
n / k + 1 / k
cast(null as int) + 1 / k
1 / k + cast(null as int)
substring(s, cast(null as int), cast(t as int))
map_filter(m, (k, v) -> v > 0)
transform_values(m, (k, v) -> v + 1)
transform_values(m, (q, v) -> q || s)
transform_keys(m, (q, v) -> upper(q))
zip_with(a, a2, (x, y) -> coalesce(x, 0) + coalesce(y, 0))
zip_with(a, w, (x, y) -> concat(x, y))
array_insert(a, 1, 9)
array_insert(a, 2, j)
array_insert(a, -1, 9)
array_insert(a, -2, j)
array_insert(a, 5, 9)
array_insert(a, -5, 9)
levenshtein(s, t)
levenshtein(t, 'World')
unhex(s)
unhex(hex(s))
unhex('abc')
s rlike 'e$'
s rlike 'line$'
cast(add_months(day, 2) as string)
cast(at + interval '8000' year as string)
md5(s)
md5(u)
sha(t)
sha1(s)
sha1(u)
sha2(s, 256)
sha2(u, 512)
sha2(s, j * 112)
sha2(t, 0)
crc32(s)
crc32(u)
base64(u)
base64(s)
unbase64(base64(s))
unbase64(base64(u))
unbase64(s)
url_encode(s)
url_decode(url_encode(s))
url_decode(s)
try_url_decode(s)
try_url_decode('a+b%20c%C3%A4')
get_json_object(s, '$.a')
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), '$.a')
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), '$.a[1].b')
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), '$["a"]')
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), "$['a'][0]")
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), '$.x')
get_json_object(concat('{"a": [', n, ', {"b": "', t, '"}], "ä": null, "x": 1.50}'), '$.ä')
get_json_object('{"a": 1, "a": 2, "b": {"c": [1e3, 1e10, true, null, "\\u00e4\\n"]}}', '$.b')
get_json_object('{"a": 1, "a": 2, "b": {"c": [1e3, 1e10, true, null, "\\u00e4\\n"]}}', '$.b.c[3]')
get_json_object('{"a": 1, "a": 2, "b": {"c": [1e3, 1e10, true, null, "\\u00e4\\n"]}}', '$.a')
get_json_object('{"a": 1', '$.a')
json_array_length(s)
json_array_length(concat('[', n, ', "', t, '"]'))
json_array_length('[]')
json_array_length('{"a": [1]}')
json_object_keys(s)
json_object_keys(concat('{"', t, '": ', n, ', "b": {"c": 1}}'))
json_object_keys('{}')
json_object_keys('[1]')
'it' 's ' 'one'
concat(s, '-' '-')
