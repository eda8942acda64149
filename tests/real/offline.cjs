// Loaded before a program: it finds no host but this one.
const dns = require('node:dns')
const lookup = dns.lookup
dns.lookup = (host, options, done) => {
  if (host === 'localhost' || host === '127.0.0.1') return lookup(host, options, done)
  const answer = typeof options === 'function' ? options : done
  process.nextTick(() => answer(Object.assign(new Error(`offline: ${host}`), { code: 'ENOTFOUND' })))
}
