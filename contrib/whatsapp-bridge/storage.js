// What the bridge keeps on the disk, in HERMES_BRIDGE_FOLDER: events until they are acknowledged, messages with files,
// which nonces were sent, and who is who (lid-mapping-….json).

import fs from 'node:fs'
import path from 'node:path'

const MOST_FILES = 2000
const MOST_NONCES = 5000

// Write a file so that a power cut leaves the old or the new content.
export function writeFile (file, text) {
  const draft = `${file}.new`
  const handle = fs.openSync(draft, 'w', 0o600)
  try {
    fs.writeSync(handle, text)
    fs.fsyncSync(handle)
  } finally {
    fs.closeSync(handle)
  }
  fs.renameSync(draft, file)
}

function names (folder) {
  return fs.readdirSync(folder).filter(name => name.endsWith('.json')).sort()
}

// Events in order; they stay until they are acknowledged, also when the bridge is started again.
export class Queue {
  constructor (folder) {
    this.folder = path.join(folder, 'hermes-events')
    fs.mkdirSync(this.folder, { recursive: true, mode: 0o700 })
    this.stream = Math.random().toString(36).slice(2) + Date.now().toString(36)
    this.events = []
    this.waiting = new Set()
    for (const name of names(this.folder)) {
      try {
        this.events.push({ seq: Number(name.slice(0, -5)), event: JSON.parse(fs.readFileSync(path.join(this.folder, name), 'utf8')) })
      } catch (error) {
        console.log(`an event could not be read (${name}): ${error.message}`)
      }
    }
    this.last = this.events.length ? this.events[this.events.length - 1].seq : 0
  }

  file (seq) {
    return path.join(this.folder, `${String(seq).padStart(15, '0')}.json`)
  }

  put (event) {
    const seq = ++this.last
    writeFile(this.file(seq), JSON.stringify(event))
    this.events.push({ seq, event })
    for (const wake of this.waiting) wake()
  }

  // Forget what `ack` covers. An acknowledgement of an earlier run of the bridge is ignored: its events come again.
  acknowledge (ack) {
    const [stream, seq] = String(ack || '').split(':')
    if (stream !== this.stream) return
    const done = this.events.filter(one => one.seq <= Number(seq))
    this.events = this.events.filter(one => one.seq > Number(seq))
    for (const one of done) fs.rmSync(this.file(one.seq), { force: true })
  }

  async poll (ack, seconds) {
    this.acknowledge(ack)
    if (!this.events.length) {
      await new Promise(resolve => {
        const wake = () => { clearTimeout(timer); this.waiting.delete(wake); resolve() }
        const timer = setTimeout(wake, Math.min(Math.max(seconds, 0), 60) * 1000)
        this.waiting.add(wake)
      })
    }
    const events = this.events.slice(0, 100).map(one => ({ seq: one.seq, ...one.event }))
    return { events, ack: events.length ? `${this.stream}:${events[events.length - 1].seq}` : String(ack || '') }
  }
}

// Messages with files, as they came: their files are fetched from WhatsApp when they are asked for.
export class Files {
  // `json` writes and reads bytes; `content` makes a message's content of an object: baileys writes its bytes as texts, and
  // needs them as bytes to ask the phone for a file again.
  constructor (folder, json, content) {
    this.folder = path.join(folder, 'hermes-files')
    this.json = json
    this.content = content
    fs.mkdirSync(this.folder, { recursive: true, mode: 0o700 })
  }

  file (id) {
    return path.join(this.folder, `${String(id).replace(/[^A-Za-z0-9_-]/g, '_')}.json`)
  }

  put (id, message) {
    writeFile(this.file(id), JSON.stringify(message, this.json.replacer))
    const all = names(this.folder)
    if (all.length > MOST_FILES) {
      const aged = all.map(name => ({ name, at: fs.statSync(path.join(this.folder, name)).mtimeMs })).sort((a, b) => a.at - b.at)
      for (const { name } of aged.slice(0, all.length - MOST_FILES)) fs.rmSync(path.join(this.folder, name), { force: true })
    }
  }

  get (id) {
    try {
      const message = JSON.parse(fs.readFileSync(this.file(id), 'utf8'), this.json.reviver)
      return { ...message, message: this.content(message.message) }
    } catch {
      return null
    }
  }
}

// Which messages were sent, by the gateway's nonce.
export class Sent {
  constructor (folder) {
    this.file = path.join(folder, 'hermes-sent.jsonl')
    this.known = new Map()
    let lines = []
    try {
      lines = fs.readFileSync(this.file, 'utf8').split('\n').filter(Boolean)
    } catch {}
    for (const line of lines.slice(-2 * MOST_NONCES)) {
      try {
        const { nonce, id, done } = JSON.parse(line)
        this.known.set(nonce, { id, done })
      } catch {}
    }
    if (lines.length > 2 * MOST_NONCES) {
      writeFile(this.file, [...this.known].map(([nonce, one]) => JSON.stringify({ nonce, ...one })).join('\n') + '\n')
    }
  }

  get (nonce) {
    return this.known.get(nonce)
  }

  note (nonce, id, done) {
    this.known.set(nonce, { id, done })
    fs.appendFileSync(this.file, JSON.stringify({ nonce, id, done }) + '\n', { mode: 0o600 })
  }
}

// Note that a LID and a number are one person, in the files that the gateway reads.
export function samePerson (folder, one, other) {
  const bare = jid => jid.split('@')[0].split(':')[0]
  const lid = [one, other].find(jid => jid?.endsWith('@lid'))
  const number = [one, other].find(jid => jid?.endsWith('@s.whatsapp.net'))
  if (!lid || !number) return
  const pairs = [[`lid-mapping-${bare(number)}.json`, bare(lid)], [`lid-mapping-${bare(lid)}_reverse.json`, bare(number)]]
  for (const [name, id] of pairs) {
    const file = path.join(folder, name)
    const text = JSON.stringify(id)
    let before = null
    try { before = fs.readFileSync(file, 'utf8') } catch {}
    if (before !== text) writeFile(file, text)
  }
}
