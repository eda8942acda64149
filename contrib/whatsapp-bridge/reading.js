// A message of WhatsApp as an event of the protocol.

const FILES = ['imageMessage', 'videoMessage', 'audioMessage', 'documentMessage', 'stickerMessage']
const KINDS = { imageMessage: 'image', videoMessage: 'video', audioMessage: 'audio', documentMessage: 'file', stickerMessage: 'image' }
const REVOKE = 0
const EDIT = 14

// null for our own messages, broadcasts, channels, and what is no message. `normalize` unwraps what a message is wrapped in.
export function eventOf (message, normalize) {
  const key = message.key || {}
  const chat = key.remoteJid || ''
  if (key.fromMe || !key.id || !/@(s\.whatsapp\.net|lid|g\.us)$/.test(chat)) return null
  const content = normalize(message.message)
  if (!content) return null
  const common = {
    id: key.id,
    chat,
    sender: key.participant || chat,
    name: message.pushName || undefined,
    timestamp: Number(message.messageTimestamp || 0)
  }
  const protocol = content.protocolMessage
  if (protocol) {
    const target = protocol.key?.id
    if (protocol.type === REVOKE && target) return { ...common, type: 'delete', target }
    if (protocol.type === EDIT && target) return { ...common, ...bodyOf(normalize(protocol.editedMessage) || {}), type: 'edit', target }
    return null
  }
  if (content.reactionMessage) {
    return { ...common, type: 'reaction', target: content.reactionMessage.key?.id, emoji: content.reactionMessage.text || '' }
  }
  const body = bodyOf(content)
  if (!body.text && !body.files) return null
  return { ...common, ...body, type: 'message' }
}

export function hasFile (content) {
  return FILES.some(kind => content?.[kind])
}

function bodyOf (content) {
  const file = FILES.find(kind => content[kind])
  const inside = content[file] || content.extendedTextMessage || {}
  const body = { text: textOf(content) }
  const about = inside.contextInfo || {}
  if (about.mentionedJid?.length) body.mentions = about.mentionedJid
  if (about.stanzaId) {
    body.quoted = { id: about.stanzaId, sender: about.participant || '', text: textOf(about.quotedMessage || {}) }
  }
  if (file) {
    const size = Number(inside.fileLength || 0)
    body.files = [{ kind: KINDS[file], mime: inside.mimetype || undefined, name: inside.fileName || undefined, size: size || undefined }]
  }
  return body
}

function textOf (content) {
  const file = FILES.find(kind => content[kind])
  if (content.conversation) return content.conversation
  if (content.extendedTextMessage) return content.extendedTextMessage.text || ''
  if (file) return content[file].caption || ''
  const place = content.locationMessage || content.liveLocationMessage
  if (place) {
    const where = [place.name, place.address].filter(Boolean).join(', ')
    return `Location: ${where ? where + ' ' : ''}(${place.degreesLatitude}, ${place.degreesLongitude})`
  }
  const cards = content.contactMessage ? [content.contactMessage] : content.contactsArrayMessage?.contacts || []
  if (cards.length) {
    return cards.map(card => `Contact: ${[card.displayName, ...numbersOf(card.vcard || '')].filter(Boolean).join(', ')}`).join('\n')
  }
  const poll = content.pollCreationMessage || content.pollCreationMessageV2 || content.pollCreationMessageV3
  if (poll) return `Poll: ${poll.name} (${(poll.options || []).map(one => one.optionName).join(', ')})`
  return ''
}

function numbersOf (vcard) {
  return [...vcard.matchAll(/^TEL[^:]*:(.+)$/gm)].map(found => found[1].trim())
}
